//! Writes values as pickles of protocol 2, with opcodes that every reader since Python 2.3 knows.

use crate::Object;

/// The pickle of a value. Shared values are written at every occurrence. `parse` returns the same value, except that an
/// ordered dictionary becomes a dictionary.
pub fn write(value: &Object) -> Vec<u8> {
    let mut out = vec![0x80, 2];
    put(&mut out, value);
    out.push(b'.');
    out
}

/// Recurses as deep as the value, which is at most [`crate::Limits::DEEPEST`] for a parsed one.
fn put(out: &mut Vec<u8>, value: &Object) {
    match value {
        Object::None => out.push(b'N'),
        Object::Bool(value) => out.push(if *value { 0x88 } else { 0x89 }),
        Object::Int(value) => put_int(out, *value),
        Object::BigInt(bytes) => put_long(out, bytes),
        Object::Float(value) => {
            out.push(b'G');
            out.extend(value.to_be_bytes());
        }
        Object::Str(text) => {
            out.push(b'X');
            out.extend((text.len() as u32).to_le_bytes());
            out.extend(text.as_bytes());
        }
        Object::Bytes(bytes) => {
            out.push(b'T');
            out.extend((bytes.len() as u32).to_le_bytes());
            out.extend(&**bytes);
        }
        Object::List(elements) => {
            out.push(b']');
            put_elements(out, elements);
        }
        Object::Tuple(elements) => put_tuple(out, elements),
        Object::Dict(entries) => {
            out.push(b'}');
            put_entries(out, entries);
        }
        // Protocol 2 has no sets, only the call that makes one.
        Object::Set(elements) => {
            put(out, &Object::global("__builtin__", "set"));
            out.push(b']');
            put_elements(out, elements);
            out.extend([0x85, b'R']);
        }
        Object::Global(global) => {
            out.push(b'c');
            out.extend(format!("{}\n{}\n", global.module, global.name).into_bytes());
        }
        Object::Call(call) => {
            put(out, &call.function);
            put(out, &call.arguments);
            out.push(b'R');
            put_elements(out, &call.elements);
            put_entries(out, &call.entries);
            if let Some(state) = &call.state {
                put(out, state);
                out.push(b'b');
            }
        }
        Object::Persistent(key) => {
            put(out, key);
            out.push(b'Q');
        }
    }
}

fn put_int(out: &mut Vec<u8>, value: i64) {
    match (u8::try_from(value), i32::try_from(value)) {
        (Ok(small), _) => out.extend([b'K', small]),
        (_, Ok(medium)) => {
            out.push(b'J');
            out.extend(medium.to_le_bytes());
        }
        _ => put_long(out, &value.to_le_bytes()),
    }
}

fn put_long(out: &mut Vec<u8>, bytes: &[u8]) {
    match u8::try_from(bytes.len()) {
        Ok(len) => out.extend([0x8a, len]),
        Err(_) => {
            out.push(0x8b);
            out.extend((bytes.len() as u32).to_le_bytes());
        }
    }
    out.extend(bytes);
}

fn put_tuple(out: &mut Vec<u8>, elements: &[Object]) {
    let end = match elements.len() {
        0 => b')',
        1 => 0x85,
        2 => 0x86,
        3 => 0x87,
        _ => b't',
    };
    if end == b't' {
        out.push(b'(');
    }
    elements.iter().for_each(|element| put(out, element));
    out.push(end);
}

fn put_elements(out: &mut Vec<u8>, elements: &[Object]) {
    if !elements.is_empty() {
        out.push(b'(');
        elements.iter().for_each(|element| put(out, element));
        out.push(b'e');
    }
}

fn put_entries(out: &mut Vec<u8>, entries: &[(Object, Object)]) {
    if !entries.is_empty() {
        out.push(b'(');
        for (key, value) in entries {
            put(out, key);
            put(out, value);
        }
        out.push(b'u');
    }
}
