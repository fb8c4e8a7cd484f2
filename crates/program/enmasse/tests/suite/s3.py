"""Serves the files of a folder in the bucket "data" by S3's protocol on loopback.

    s3.py FOLDER

Prints its address and the two keys of a user who may read the bucket, a line each. Ends when its input does.
"""
import json
import sys
from pathlib import Path

import boto3
from moto.core import authorization
from moto.iam.access_control import S3IAMRequest
from moto.server import ThreadedMotoServer

as_received = S3IAMRequest._create_aws_request


def as_signed(request):
    """What a client signs has encoded slashes in its query; moto would compare with decoded ones, and refuses boto3 too."""
    path, mark, query = request._path.partition("?")
    request._path = path + mark + query.replace("/", "%2F")
    return as_received(request)


S3IAMRequest._create_aws_request = as_signed
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
address = "http://%s:%s" % server.get_host_and_port()
settings = {"endpoint_url": address, "region_name": "us-east-1", "aws_access_key_id": "a", "aws_secret_access_key": "b"}
s3, iam = boto3.client("s3", **settings), boto3.client("iam", **settings)
s3.create_bucket(Bucket="data")
folder = Path(sys.argv[1])
for path in folder.rglob("*"):
    if path.is_file():
        s3.put_object(Bucket="data", Key=str(path.relative_to(folder)), Body=path.read_bytes())
iam.create_user(UserName="reader")
policy = {"Effect": "Allow", "Action": ["s3:GetObject", "s3:ListBucket"], "Resource": "*"}
iam.put_user_policy(
    UserName="reader", PolicyName="read", PolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [policy]})
)
key = iam.create_access_key(UserName="reader")["AccessKey"]
# From now on every request must be signed.
authorization.settings.INITIAL_NO_AUTH_ACTION_COUNT = 0
print(address, key["AccessKeyId"], key["SecretAccessKey"], sep="\n", flush=True)
sys.stdin.read()
server.stop()
