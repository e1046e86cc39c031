"""The server: requests of many clients -> packed batches -> answers. The door:

    run   the command `serve`

app: paths, and errors in JSON; models: what each one takes and says; batching: requests that wait, and the thread that
answers them; http: what a client may do; metrics, openapi: what is told of all this.
"""
