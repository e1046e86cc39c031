"""The server: the requests of many clients are computed in packed batches, with FastAPI and uvicorn. The door:

    server   the command `serve`

app: limits, the token and errors, for all paths; routes: the paths, a function each; bodies: the fields of requests and responses;
service: models, their queues and metrics; queues: waiting requests, and the threads that compute them; models: a model's predictions
and vectors for many requests at once; workers, connections: processes, and the connections that they accept.
"""
