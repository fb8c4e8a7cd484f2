//! Messages of protocol buffers, written field by field. The caller knows the numbers of the fields.
//!
//! ```
//! use enmasse_protobuf::Message;
//! let point = Message::new().varint(1, 3).float(2, 0.5);
//! let line = Message::new().bytes(1, "origin").message(2, point);
//! assert_eq!(line.to_vec(), b"\x0a\x06origin\x12\x07\x08\x03\x15\0\0\0\x3f");
//! ```

use std::borrow::Cow;
use std::io::{self, Write};

/// The wire types of fields.
const VARINT: u64 = 0;
const BITS_64: u64 = 1;
const LENGTH: u64 = 2;
const BITS_32: u64 = 5;

/// A message. It holds long fields by reference, so that those of a large file are not copied into each message around them.
#[derive(Clone, Debug, Default)]
pub struct Message<'a> {
    /// The bytes, in pieces.
    pieces: Vec<Cow<'a, [u8]>>,
    len: u64,
}

impl<'a> Message<'a> {
    /// A message without fields.
    pub fn new() -> Self {
        Message::default()
    }

    /// An integer that is not negative, a Boolean or an enumerator.
    pub fn varint(mut self, field: u32, value: u64) -> Self {
        self.key(field, VARINT);
        self.number(value);
        self
    }

    /// A `float`.
    pub fn float(mut self, field: u32, value: f32) -> Self {
        self.key(field, BITS_32);
        self.extend(&value.to_le_bytes());
        self
    }

    /// A `double`.
    pub fn double(mut self, field: u32, value: f64) -> Self {
        self.key(field, BITS_64);
        self.extend(&value.to_le_bytes());
        self
    }

    /// A `string` or `bytes`, copied.
    pub fn bytes(mut self, field: u32, bytes: impl AsRef<[u8]>) -> Self {
        self.key(field, LENGTH);
        self.number(bytes.as_ref().len() as u64);
        self.extend(bytes.as_ref());
        self
    }

    /// Long `bytes`, which the message refers to.
    pub fn long_bytes(mut self, field: u32, bytes: &'a [u8]) -> Self {
        self.key(field, LENGTH);
        self.number(bytes.len() as u64);
        self.len += bytes.len() as u64;
        self.pieces.push(Cow::Borrowed(bytes));
        self
    }

    /// A message in this one.
    pub fn message(mut self, field: u32, message: Message<'a>) -> Self {
        self.key(field, LENGTH);
        self.number(message.len);
        self.len += message.len;
        self.pieces.extend(message.pieces);
        self
    }

    /// The message's length in bytes. Readers take no more than 2 GiB.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no fields.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        self.pieces.concat()
    }

    /// Writes the bytes.
    ///
    /// # Errors
    /// The writer's own. Some of the bytes may have been written then.
    pub fn write(&self, writer: &mut impl Write) -> io::Result<()> {
        self.pieces.iter().try_for_each(|piece| writer.write_all(piece))
    }

    fn key(&mut self, field: u32, wire_type: u64) {
        self.number(u64::from(field) << 3 | wire_type);
    }

    /// A number in groups of seven bits, the lowest first.
    fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.extend(&[value as u8 | 0x80]);
            value >>= 7;
        }
        self.extend(&[value as u8]);
    }

    fn extend(&mut self, bytes: &[u8]) {
        self.len += bytes.len() as u64;
        match self.pieces.last_mut() {
            Some(Cow::Owned(last)) => last.extend(bytes),
            _ => self.pieces.push(Cow::Owned(bytes.to_vec())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of protocol buffers' description of the encoding.
    #[test]
    fn known_answers() {
        let check = |message: Message, expected: &[u8]| {
            assert_eq!(message.to_vec(), expected);
            assert_eq!(message.len(), expected.len() as u64);
        };
        check(Message::new(), b"");
        check(Message::new().varint(1, 150), b"\x08\x96\x01");
        check(Message::new().bytes(2, "testing"), b"\x12\x07testing");
        check(Message::new().message(3, Message::new().varint(1, 150)), b"\x1a\x03\x08\x96\x01");
        check(Message::new().double(16, 1.0), b"\x81\x01\0\0\0\0\0\0\xf0\x3f");
        check(Message::new().varint(1, u64::MAX), b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01");
    }

    #[test]
    fn long_bytes_and_messages_are_the_bytes_that_copies_would_be() {
        let long = [7; 300];
        let inner = || Message::new().varint(1, 1).long_bytes(2, &long).float(3, 2.5);
        let outer = Message::new().bytes(1, "a").message(2, inner()).varint(3, 9);
        let copied = Message::new().bytes(1, "a").bytes(2, inner().to_vec()).varint(3, 9);
        let mut written = Vec::new();
        outer.write(&mut written).unwrap();
        assert_eq!((&written, outer.len()), (&copied.to_vec(), written.len() as u64));
    }
}
