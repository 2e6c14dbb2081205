"""The names that a library exports, and its build-id, from its ELF file. Only 64-bit little-endian files; another file has
neither."""

import struct

DYNSYM, NOTE, GLOBAL, WEAK = 11, 7, 1, 2
BUILD_ID = 3


def sections(data):
    if data[:6] != b"\x7fELF\x02\x01" or len(data) < 64:
        return []
    offset, count = struct.unpack_from("<Q", data, 40)[0], struct.unpack_from("<H", data, 60)[0]
    return [struct.unpack_from("<IIQQQQIIQQ", data, offset + 64 * at) for at in range(count)]


def load(path):
    with open(path, "rb") as file:
        return file.read()


def exports(path):
    data, found = load(path), set()
    all_sections = sections(data)
    for _, kind, _, _, offset, size, link, _, _, _ in all_sections:
        if kind != DYNSYM:
            continue
        text = all_sections[link][4]
        for at in range(offset, offset + size, 24):
            name, info, _, index = struct.unpack_from("<IBBH", data, at)
            if index and info >> 4 in (GLOBAL, WEAK):
                found.add(data[text + name : data.index(b"\0", text + name)].decode())
    return found


def build_id(path):
    """In hex; empty if it has none."""
    data = load(path)
    for _, kind, _, _, offset, size, _, _, _, _ in sections(data):
        at = offset
        while kind == NOTE and at + 12 <= offset + size:
            name, length, note = struct.unpack_from("<III", data, at)
            start = at + 12 + (name + 3) // 4 * 4
            if note == BUILD_ID and data[at + 12 : at + 15] == b"GNU":
                return data[start : start + length].hex()
            at = start + (length + 3) // 4 * 4
    return ""
