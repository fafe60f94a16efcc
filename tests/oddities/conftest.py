"""The submissions are odd on purpose: pytest must neither collect nor import them."""

collect_ignore_glob = ["submissions/*"]
