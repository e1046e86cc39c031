"""bertkit beside Hugging Face: the same work, done in turn by systems that have a process each. The door:

    run   the command `bench`

workload, writing: what is done; bertkit_way, hugging_face: who does it; rounds: their turns; scaling: growth and memory;
attention: variants of attention.
"""
