"""The processes of a run: which one this is, and the launcher that starts and watches them."""
