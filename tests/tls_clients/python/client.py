"""Calls AdminService/GetServerInfo once and prints one line: what came back, or the error as grpcio has it.

A token in RINGQ_TOKEN goes with the call. Without -ca the connection has no TLS.
"""

import argparse
import os
import sys
from pathlib import Path

import grpc

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("-ca", type=Path, help="file with the authority of the server")
parser.add_argument("-cert", type=Path, help="file with the certificate of this client")
parser.add_argument("-key", type=Path, help="file with its key")
parser.add_argument("address", metavar="HOST:PORT")
given = parser.parse_args()

if given.ca:
    pair = (given.key.read_bytes(), given.cert.read_bytes()) if given.cert else (None, None)
    channel = grpc.secure_channel(given.address, grpc.ssl_channel_credentials(given.ca.read_bytes(), *pair))
else:
    channel = grpc.insecure_channel(given.address)
token = os.environ.get("RINGQ_TOKEN")
headers = [("authorization", f"Bearer {token}")] if token else []
# The bytes of messages: the request has no fields, and no generated code is needed.
call = channel.unary_unary("/ringq.v1.AdminService/GetServerInfo")
try:
    length = len(call(b"", timeout=30, metadata=headers))
except grpc.RpcError as error:
    print(f"{error.code().name}: {error.details()}")
    sys.exit(1)
if length == 0:
    sys.exit("the answer is empty")
print(length, "bytes")
