//! Structs in Thrift's compact protocol, in which Parquet writes its metadata: a field at a time, from bytes that nobody trusts,
//! and to others.
//!
//! Reading allocates nothing. A list's length counts for no more than the elements that follow it.

/// Why bytes are no such struct.
pub(crate) type Fault = &'static str;

const CUT: Fault = "its metadata end early";
const NESTED: Fault = "its metadata are nested too deeply";
const MISTYPED: Fault = "its metadata have a field of another type";

/// Structs in structs and lists that are skipped.
const MAX_DEPTH: usize = 32;

/// The type of a value, as it is written before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Type(u8);

impl Type {
    const TRUE: Type = Type(1);
    const FALSE: Type = Type(2);
    const BYTE: Type = Type(3);
    const DOUBLE: Type = Type(7);
    const BINARY: Type = Type(8);
    const LIST: Type = Type(9);
    const SET: Type = Type(10);
    const MAP: Type = Type(11);
    const STRUCT: Type = Type(12);
    /// Numbers of 16, 32 and 64 bits, which are written alike.
    const NUMBERS: [Type; 3] = [Type(4), Type(5), Type(6)];
    const INT: Type = Self::NUMBERS[1];
    const LONG: Type = Self::NUMBERS[2];
}

/// Reads one value after another.
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader { bytes, at: 0 }
    }

    /// Bytes that have been read.
    pub fn position(&self) -> usize {
        self.at
    }

    /// Reads a struct. `field` gets the number and the type of each field, and reads it and returns true, or returns false.
    pub fn each_field(
        &mut self,
        mut field: impl FnMut(&mut Self, i64, Type) -> Result<bool, Fault>,
    ) -> Result<(), Fault> {
        let mut number = 0;
        while let Some((next, kind)) = self.field(number)? {
            number = next;
            if !field(self, number, kind)? {
                self.skip(kind, 0)?;
            }
        }
        Ok(())
    }

    /// Reads a list of structs. `element` reads one.
    pub fn each_struct(
        &mut self,
        kind: Type,
        mut element: impl FnMut(&mut Self) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let (count, inner) = self.list(kind)?;
        match inner {
            _ if count == 0 => Ok(()),
            Type::STRUCT => (0..count).try_for_each(|_| element(self)),
            _ => Err(MISTYPED),
        }
    }

    /// A number of any width.
    pub fn number(&mut self, kind: Type) -> Result<i64, Fault> {
        match kind {
            Type::BYTE => Ok(i64::from(self.byte()? as i8)),
            _ if Type::NUMBERS.contains(&kind) => {
                let number = self.varint()?;
                Ok((number >> 1) as i64 ^ -((number & 1) as i64))
            }
            _ => Err(MISTYPED),
        }
    }

    /// A field that is true or false: its type is its value.
    pub fn truth(&self, kind: Type) -> Result<bool, Fault> {
        match kind {
            Type::TRUE => Ok(true),
            Type::FALSE => Ok(false),
            _ => Err(MISTYPED),
        }
    }

    /// Bytes of any length.
    pub fn text(&mut self, kind: Type) -> Result<&'a [u8], Fault> {
        if kind != Type::BINARY {
            return Err(MISTYPED);
        }
        let length = self.varint()?;
        self.take(length)
    }

    /// The next field after the one with the number `before`; `None` at the end of the struct.
    fn field(&mut self, before: i64) -> Result<Option<(i64, Type)>, Fault> {
        let head = self.byte()?;
        if head == 0 {
            return Ok(None);
        }
        let kind = Type(head & 15);
        let number = match head >> 4 {
            0 => self.number(Type::NUMBERS[0])?,
            step => before.saturating_add(i64::from(step)),
        };
        Ok(Some((number, kind)))
    }

    /// The number of a list's elements, each of which takes a byte at least, and their type.
    fn list(&mut self, kind: Type) -> Result<(u64, Type), Fault> {
        if kind != Type::LIST && kind != Type::SET {
            return Err(MISTYPED);
        }
        let head = self.byte()?;
        let count = match head >> 4 {
            15 => self.varint()?,
            count => u64::from(count),
        };
        if count > (self.bytes.len() - self.at) as u64 {
            return Err(CUT);
        }
        Ok((count, Type(head & 15)))
    }

    fn skip(&mut self, kind: Type, depth: usize) -> Result<(), Fault> {
        if depth == MAX_DEPTH {
            return Err(NESTED);
        }
        match kind {
            Type::TRUE | Type::FALSE => {}
            Type::DOUBLE => drop(self.take(8)?),
            Type::BINARY => drop(self.text(kind)?),
            Type::LIST | Type::SET => {
                let (count, inner) = self.list(kind)?;
                for _ in 0..count {
                    self.skip_element(inner, depth + 1)?;
                }
            }
            Type::MAP => {
                let count = self.varint()?;
                let kinds = if count == 0 { 0 } else { self.byte()? };
                for _ in 0..count {
                    self.skip_element(Type(kinds >> 4), depth + 1)?;
                    self.skip_element(Type(kinds & 15), depth + 1)?;
                }
            }
            Type::STRUCT => {
                let mut number = 0;
                while let Some((next, kind)) = self.field(number)? {
                    number = next;
                    self.skip(kind, depth + 1)?;
                }
            }
            number => drop(self.number(number)?),
        }
        Ok(())
    }

    /// In lists, true and false are a byte.
    fn skip_element(&mut self, kind: Type, depth: usize) -> Result<(), Fault> {
        match kind {
            Type::TRUE | Type::FALSE => self.byte().map(drop),
            kind => self.skip(kind, depth),
        }
    }

    fn byte(&mut self) -> Result<u8, Fault> {
        let byte = *self.bytes.get(self.at).ok_or(CUT)?;
        self.at += 1;
        Ok(byte)
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8], Fault> {
        let rest = &self.bytes[self.at..];
        let length = usize::try_from(length).ok().filter(|&length| length <= rest.len()).ok_or(CUT)?;
        self.at += length;
        Ok(&rest[..length])
    }

    fn varint(&mut self) -> Result<u64, Fault> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 127) << shift;
            if byte < 128 {
                return Ok(number);
            }
        }
        Err("its metadata have a number of more than 64 bits")
    }
}

/// Writes a struct's fields in the order of their numbers, of which each is at most 15 larger than the one before.
#[derive(Default)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
    last: u8,
}

impl Writer {
    pub fn int(self, field: u8, value: i32) -> Self {
        self.field(field, Type::INT).signed(i64::from(value))
    }

    pub fn long(self, field: u8, value: i64) -> Self {
        self.field(field, Type::LONG).signed(value)
    }

    pub fn text(self, field: u8, value: &str) -> Self {
        self.field(field, Type::BINARY).bytes(value.as_bytes())
    }

    /// A struct.
    pub fn inner(self, field: u8, value: Writer) -> Self {
        self.field(field, Type::STRUCT).raw(&value.end())
    }

    /// A list of structs.
    pub fn list(self, field: u8, values: Vec<Writer>) -> Self {
        let list = self.begin_list(field, values.len(), Type::STRUCT);
        values.into_iter().fold(list, |list, value| list.raw(&value.end()))
    }

    pub fn ints(self, field: u8, values: &[i32]) -> Self {
        let list = self.begin_list(field, values.len(), Type::INT);
        values.iter().fold(list, |list, &value| list.signed(i64::from(value)))
    }

    pub fn texts(self, field: u8, values: &[&str]) -> Self {
        let list = self.begin_list(field, values.len(), Type::BINARY);
        values.iter().fold(list, |list, value| list.bytes(value.as_bytes()))
    }

    /// The whole struct.
    pub fn end(self) -> Vec<u8> {
        self.raw(&[0]).bytes
    }

    fn field(mut self, number: u8, kind: Type) -> Self {
        let step = number - self.last;
        self.last = number;
        self.raw(&[step << 4 | kind.0])
    }

    fn begin_list(self, field: u8, count: usize, kind: Type) -> Self {
        let mut list = self.field(field, Type::LIST);
        match u8::try_from(count) {
            Ok(count @ ..15) => list.bytes.push(count << 4 | kind.0),
            _ => {
                list.bytes.push(15 << 4 | kind.0);
                varint(&mut list.bytes, count as u64);
            }
        }
        list
    }

    fn signed(mut self, value: i64) -> Self {
        varint(&mut self.bytes, (value << 1 ^ value >> 63) as u64);
        self
    }

    fn bytes(mut self, value: &[u8]) -> Self {
        varint(&mut self.bytes, value.len() as u64);
        self.raw(value)
    }

    fn raw(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend(bytes);
        self
    }
}

/// Appends a number of any size, seven bits a byte.
pub(crate) fn varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number > 127 {
        bytes.push(number as u8 | 128);
        number >>= 7;
    }
    bytes.push(number as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The field 1 of a struct, as a number.
    fn first(bytes: &[u8]) -> Result<Option<i64>, Fault> {
        let mut found = None;
        Reader::new(bytes).each_field(|reader, number, kind| {
            if number == 1 {
                found = Some(reader.number(kind)?);
            }
            Ok(number == 1)
        })?;
        Ok(found)
    }

    #[test]
    fn fields_are_read_or_skipped() {
        let check =
            |bytes: &[u8], expected: Result<Option<i64>, Fault>| assert_eq!(first(bytes), expected, "{bytes:?}");
        check(&[0], Ok(None));
        check(&[0x15, 2, 0], Ok(Some(1)));
        check(&[0x16, 0xFF, 0xFF, 3, 0], Ok(Some(-32768)));
        check(&[0x13, 0xFF, 0], Ok(Some(-1)));
        // A field with its whole number: 2, of any type; then 1.
        let skipped: [&[u8]; 9] = [
            &[1],
            &[2],
            &[3, 9],
            &[6, 0x80, 1],
            &[7, 1, 2, 3, 4, 5, 6, 7, 8],
            &[8, 3, 1, 2, 3],
            &[9, 0x31, 1, 2, 1],
            &[11, 1, 0x85, 1, 7, 2],
            &[12, 0x15, 2, 0x1C, 0, 0],
        ];
        for value in skipped {
            let bytes = [&[value[0], 4], &value[1..], &[5, 2, 2, 0]].concat();
            check(&bytes, Ok(Some(1)));
        }
        check(&[], Err(CUT));
        check(&[0x15], Err(CUT));
        check(&[0x15, 2], Err(CUT));
        check(&[0x18, 2, 0], Err(MISTYPED));
        check(
            &[0x15, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0],
            Err("its metadata have a number of more than 64 bits"),
        );
        check(&[0x28, 0xFF, 0xFF, 0xFF, 0xFF, 15], Err(CUT));
        check(&[0x29, 0xF1, 0xFF, 0xFF, 0xFF, 0xFF, 15], Err(CUT));
        check(&[0x2C; 40], Err(NESTED));
        check(&[0x2B, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1, 0x11], Err(CUT));
    }
}
