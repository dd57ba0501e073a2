# What `make train` does, in a container without a GPU; docs/docker.md says how to keep its runs.
FROM python:3.11-slim-bookworm

# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends make \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --create-home --uid 1000 lrl \
 && install --directory --owner lrl /lrl /lrl/runs

USER 1000
WORKDIR /lrl

# An index of torch's wheels without CUDA, which are smaller by gigabytes.
ARG PIP_EXTRA_INDEX_URL=
ENV PIP_NO_CACHE_DIR=1

COPY --chown=1000 . .
RUN make .venv/.run

CMD ["make", "train"]
