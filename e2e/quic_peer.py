"""A server or a client of QUIC.

quic_peer.py server NAME HOST PORT: says its port, and answers a stream "TEXT" with "NAME TEXT", or with as many bytes
as "bytes NUMBER" asks for.

quic_peer.py client HOST PORT: reads commands. "ask TEXT" opens a stream, and says the answer; "bytes NUMBER" says the
length of the answer; "rebind" changes the client's port, as a NAT device does that has forgotten the client, and
"rebind ADDRESS" also the address.
"""

import asyncio
import datetime
import socket
import ssl
import sys

from aioquic.asyncio import connect, serve
from aioquic.quic.configuration import QuicConfiguration
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

ALPN = ["evenkeel-test"]


def say(text):
    print(text, flush=True)


def certificate():
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "quic.example")])
    now = datetime.datetime.now(datetime.timezone.utc)
    day = datetime.timedelta(days=1)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - day).not_valid_after(now + day)
    return builder.sign(key, hashes.SHA256()), key


async def run_server(name, host, port):
    async def answer(reader, writer):
        question = (await reader.read()).decode()
        if question.startswith("bytes "):
            writer.write(b"x" * int(question.split()[1]))
        else:
            writer.write(f"{name} {question}".encode())
        writer.write_eof()

    tasks = set()

    def handle(reader, writer):
        task = asyncio.get_running_loop().create_task(answer(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    configuration = QuicConfiguration(is_client=False, alpn_protocols=ALPN)
    configuration.certificate, configuration.private_key = certificate()
    server = await serve(host, port, configuration=configuration, stream_handler=handle)
    say(server._transport.get_extra_info("sockname")[1])
    await asyncio.Event().wait()


async def rebind(client, host):
    fresh = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    fresh.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    mapped = f"::ffff:{host}" if "." in host else host
    fresh.bind((mapped or "::", 0, 0, 0))
    before = client._transport
    await asyncio.get_running_loop().create_datagram_endpoint(lambda: client, sock=fresh)
    before.close()


async def run_client(host, port):
    configuration = QuicConfiguration(is_client=True, alpn_protocols=ALPN, verify_mode=ssl.CERT_NONE)
    loop = asyncio.get_running_loop()
    async with connect(host, port, configuration=configuration) as client:
        say("connected")
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            command = line.strip()
            if command.split()[:1] == ["rebind"]:
                await rebind(client, command.removeprefix("rebind").strip())
                say("rebound")
                continue
            reader, writer = await client.create_stream()
            writer.write(command.removeprefix("ask ").encode())
            writer.write_eof()
            answer = await reader.read()
            say(len(answer) if command.startswith("bytes ") else answer.decode())


if sys.argv[1] == "server":
    asyncio.run(run_server(sys.argv[2], sys.argv[3], int(sys.argv[4])))
else:
    asyncio.run(run_client(sys.argv[2], int(sys.argv[3])))
