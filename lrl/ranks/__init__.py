"""Several learner ranks while they run: what they ask each other, and who watches them."""
