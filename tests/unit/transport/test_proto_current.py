"""The generated code is that of `protos/peer.proto`: compared with the text, and where possible
generated again."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)

from mend_optim.transport._pb import peer_pb2

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "protos" / "peer.proto"
# the name it is generated under: unique in the process-wide pool
PATH = "mend_optim/transport/_pb/peer.proto"


def generated() -> FileDescriptorProto:
    return FileDescriptorProto.FromString(peer_pb2.DESCRIPTOR.serialized_pb)


def tokens(text: str) -> list[str]:
    text = re.sub(r"//[^\n]*", "", text).replace(".mend_optim.", "")
    return re.findall(r"[\w.]+|\"[^\"]*\"|[^\s\w]", text)


def field_text(field: FieldDescriptorProto) -> str:
    kind = (
        field.type_name or FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    )
    repeated = "repeated " if field.label == FieldDescriptorProto.LABEL_REPEATED else ""
    return f"{repeated}{kind} {field.name} = {field.number};"


def message_text(message: DescriptorProto) -> str:
    """A message as source text. Features that this function cannot write (nested types, options …)
    must not be there."""
    known = {"name", "field", "oneof_decl"}
    assert {field.name for field, _ in message.ListFields()} <= known, (
        f"teach this test about {message}"
    )
    body, opened = "", set()
    for field in message.field:
        if not field.HasField("oneof_index"):
            body += field_text(field)
        elif field.oneof_index not in opened:
            opened.add(field.oneof_index)
            inside = "".join(
                field_text(f)
                for f in message.field
                if f.HasField("oneof_index") and f.oneof_index == field.oneof_index
            )
            body += f"oneof {message.oneof_decl[field.oneof_index].name} {{ {inside} }}"
    return f"message {message.name} {{ {body} }}"


def file_text(file: FileDescriptorProto) -> str:
    text = f'syntax = "{file.syntax}"; package {file.package};'
    for service in file.service:
        methods = ""
        for m in service.method:
            up, down = "stream " * m.client_streaming, "stream " * m.server_streaming
            methods += f"rpc {m.name}({up}{m.input_type}) returns ({down}{m.output_type});"
        text += f"service {service.name} {{ {methods} }}"
    return text + "".join(map(message_text, file.message_type))


def test_generated_code_says_what_the_source_says():
    assert tokens(file_text(generated())) == tokens(SOURCE.read_text()), (
        "peer.proto changed: run `make proto`"
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("bool due = 8;", ""),
        ("bool due = 8;", "bool due = 9;"),
        ("repeated Member", "Member"),
        ("(stream Frame)", "(Frame)"),
        ("message Ack {}", "message Ack {} message New {}"),
    ],
)
def test_a_changed_source_would_be_noticed(old, new):
    text = SOURCE.read_text()
    assert old in text
    assert tokens(text.replace(old, new, 1)) != tokens(file_text(generated()))


def test_generating_it_again_gives_the_same(tmp_path):
    protoc = pytest.importorskip(
        "grpc_tools.protoc", reason="grpcio-tools is not installed: the text was compared, above"
    )
    out = tmp_path / "set"
    include = Path(protoc.__file__).parent / "_proto"
    arguments = [
        "protoc",
        f"-Imend_optim/transport/_pb={SOURCE.parent}",
        f"-I{include}",
        f"--descriptor_set_out={out}",
        PATH,
    ]
    assert protoc.main(arguments) == 0
    (again,) = FileDescriptorSet.FromString(out.read_bytes()).file
    for message in again.message_type:
        for field in message.field:
            field.ClearField("json_name")  # derived; only the compiler's own output carries it
    assert again == generated()


def test_the_protobuf_in_use_is_one_the_generated_code_runs_on():
    text = (ROOT / "mend_optim" / "transport" / "_pb" / "peer_pb2.py").read_text()
    match = re.search(r"Protobuf Python Version: (\d+)\.(\d+)", text)
    assert match is not None
    assert match.groups() == ("6", "30"), (
        "generate with the oldest tools that cover the range we declare"
    )
    assert int(version("protobuf").split(".")[0]) in (6, 7)
