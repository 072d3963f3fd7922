"""What is promised, what it costs, and the proof of it: the part everything else is built around."""
