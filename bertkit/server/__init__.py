"""The server: the requests of many clients are computed in packed batches, with FastAPI and uvicorn. The door:

    server   the command `serve`

app: the HTTP paths; bodies: the fields of requests and responses; service: models, their queues and metrics; queues: waiting
requests, and the threads that compute them; models: a model's predictions and vectors for many requests at once.
"""
