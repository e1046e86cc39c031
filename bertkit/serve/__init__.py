"""The server: requests of many clients -> packed batches -> answers. The door:

    run   the command `serve`

FastAPI reads requests and uvicorn serves them. app: the paths; bodies: the fields of requests and answers; models: a model's
answers to many requests; queues: waiting requests, and the thread that answers them; service: loads and reloads the models.
"""
