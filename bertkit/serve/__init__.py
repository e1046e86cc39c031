"""The server: requests of many clients -> packed batches -> answers. The door:

    run   the command `serve`

FastAPI reads requests and uvicorn serves them. app: the paths; bodies: what is asked and answered; models: what each one
takes and says; batching: requests that wait, and the thread that answers them; service: loads, reloads and asks models.
"""
