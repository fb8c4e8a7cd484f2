//! The contents of a pickle as data. Values that the pickle shares are shared here too, so that cloning one is cheap.

use std::borrow::Cow;
use std::rc::Rc;

/// A Python object, as far as a file describes it.
#[derive(Clone, Debug, PartialEq)]
pub enum Object {
    /// `None`
    None,
    /// `True`, `False`
    Bool(bool),
    /// An integer of up to 64 bits.
    Int(i64),
    /// A larger integer: little-endian two's complement.
    BigInt(Rc<[u8]>),
    /// A number.
    Float(f64),
    /// A text.
    Str(Rc<str>),
    /// Bytes, a bytearray, or a text of Python 2, whose encoding is unknown.
    Bytes(Rc<[u8]>),
    /// A list.
    List(Rc<[Object]>),
    /// A tuple.
    Tuple(Rc<[Object]>),
    /// A dictionary, ordered or not, with its entries in the order they were set. Of equal keys the later one counts.
    Dict(Rc<[(Object, Object)]>),
    /// A set or a frozen set.
    Set(Rc<[Object]>),
    /// A class or function by name.
    Global(Rc<Global>),
    /// A call that Python would make here.
    Call(Rc<Call>),
    /// Data that the file's format keeps elsewhere, by its key.
    Persistent(Rc<Object>),
}

/// The name of a class or function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Global {
    /// Such as `torch._utils`.
    pub module: String,
    /// Such as `_rebuild_tensor_v2`.
    pub name: String,
}

/// A call that was not made, and the operations that would follow on its result.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// Usually a [`Object::Global`].
    pub function: Object,
    /// Usually a [`Object::Tuple`].
    pub arguments: Object,
    /// The argument of `__setstate__`, or the attributes to set.
    pub state: Option<Object>,
    /// The elements to append.
    pub elements: Vec<Object>,
    /// The items to set.
    pub entries: Vec<(Object, Object)>,
}

impl Object {
    /// A text; also one of Python 2 if it is UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Object::Str(text) => Some(text),
            Object::Bytes(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// An integer of up to 64 bits.
    pub fn as_int(&self) -> Option<i64> {
        match self {
            Object::Int(value) => Some(*value),
            _ => None,
        }
    }

    /// A bool, which older files write as 0 or 1.
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Object::Bool(value) => Some(*value),
            Object::Int(0) => Some(false),
            Object::Int(1) => Some(true),
            _ => None,
        }
    }

    /// Bytes; also those that Python 3 writes in protocol 2, as a text whose characters are the bytes.
    pub fn to_bytes(&self) -> Option<Cow<'_, [u8]>> {
        match self {
            Object::Bytes(bytes) => Some(Cow::Borrowed(bytes)),
            Object::Call(call) => match (call.function.as_global()?, call.arguments.as_slice()?) {
                (("_codecs", "encode"), [Object::Str(text), encoding]) if encoding.as_str() == Some("latin1") => text
                    .chars()
                    .map(|letter| u8::try_from(u32::from(letter)).ok())
                    .collect::<Option<_>>()
                    .map(Cow::Owned),
                (("__builtin__" | "builtins", "bytes"), []) => Some(Cow::Borrowed(&[])),
                _ => None,
            },
            _ => None,
        }
    }

    /// The elements of a list or tuple.
    pub fn as_slice(&self) -> Option<&[Object]> {
        match self {
            Object::List(values) | Object::Tuple(values) => Some(values),
            _ => None,
        }
    }

    /// The entries of a dictionary.
    pub fn as_dict(&self) -> Option<&[(Object, Object)]> {
        match self {
            Object::Dict(entries) => Some(entries),
            _ => None,
        }
    }

    /// The value at a text key of a dictionary.
    pub fn get(&self, key: &str) -> Option<&Object> {
        let entries = self.as_dict()?;
        entries.iter().rev().find(|(own, _)| own.as_str() == Some(key)).map(|(_, value)| value)
    }

    /// Module and name of a class or function.
    pub fn as_global(&self) -> Option<(&str, &str)> {
        match self {
            Object::Global(global) => Some((&global.module, &global.name)),
            _ => None,
        }
    }

    /// A call.
    pub fn as_call(&self) -> Option<&Call> {
        match self {
            Object::Call(call) => Some(call),
            _ => None,
        }
    }

    /// A class or function.
    pub fn global(module: &str, name: &str) -> Object {
        Object::Global(Rc::new(Global { module: module.to_owned(), name: name.to_owned() }))
    }

    /// A call with these arguments.
    pub fn call(function: Object, arguments: impl IntoIterator<Item = Object>) -> Object {
        let arguments = arguments.into_iter().collect();
        Object::Call(Rc::new(Call { function, arguments, state: None, elements: Vec::new(), entries: Vec::new() }))
    }
}

/// A tuple of values.
impl FromIterator<Object> for Object {
    fn from_iter<I: IntoIterator<Item = Object>>(values: I) -> Self {
        Object::Tuple(values.into_iter().collect())
    }
}

impl From<&str> for Object {
    fn from(text: &str) -> Self {
        Object::Str(text.into())
    }
}

impl From<i64> for Object {
    fn from(value: i64) -> Self {
        Object::Int(value)
    }
}
