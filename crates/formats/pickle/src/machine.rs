//! The stack machine. Its objects are numbered, so that lists can grow after they were shared, and no object is visited
//! twice.

use std::collections::HashMap;

use crate::freeze::freeze;
use crate::node::{Kind, Node, NodeId};
use crate::scan::{Scanner, int, unescape, unquote};
use crate::{Limits, Object, PickleError};

/// Parses one pickle from the start of `bytes`. Also returns its length in bytes: some formats concatenate several.
///
/// # Errors
/// The pickle is cut short, damaged, has an opcode that no data file needs, or contains itself; or it exceeds `limits`.
pub fn parse(bytes: &[u8], limits: &Limits) -> Result<(Object, usize), PickleError> {
    let limits = Limits { depth: limits.depth.min(Limits::DEEPEST), values: limits.values.min(u32::MAX as usize) };
    let mut machine = Machine::new(bytes, limits.values);
    loop {
        machine.count(1)?;
        if let Some(root) = machine.step()? {
            return Ok((freeze(machine.nodes, root, &limits)?, machine.scanner.position()));
        }
    }
}

struct Machine<'a> {
    scanner: Scanner<'a>,
    /// Position of the current opcode.
    offset: usize,
    nodes: Vec<Node>,
    stack: Vec<NodeId>,
    /// The height of the stack at each mark.
    marks: Vec<usize>,
    memo: HashMap<u32, NodeId>,
    /// Opcodes executed and elements copied so far: at least the number of objects, and of their elements.
    counted: usize,
    /// [`Limits::values`].
    most: usize,
}

impl<'a> Machine<'a> {
    fn new(bytes: &'a [u8], most: usize) -> Self {
        let (nodes, stack, marks) = Default::default();
        Machine { scanner: Scanner::new(bytes), offset: 0, nodes, stack, marks, memo: HashMap::new(), counted: 0, most }
    }

    fn count(&mut self, more: usize) -> Result<(), PickleError> {
        self.counted = self.counted.saturating_add(more);
        if self.counted > self.most { Err(PickleError::TooMany(self.most)) } else { Ok(()) }
    }

    /// Executes one opcode; the last one returns the pickle's object.
    fn step(&mut self) -> Result<Option<NodeId>, PickleError> {
        self.offset = self.scanner.position();
        let opcode = self.scanner.byte()?;
        match opcode {
            // Frame: its length is for readers that prefetch.
            0x95 => {
                self.scanner.take(8)?;
            }
            0x80 => {
                if self.scanner.byte()? > 5 {
                    return Err(self.damaged("its protocol is newer than 5"));
                }
            }
            b'.' => return self.pop().map(Some),
            b'(' => self.marks.push(self.stack.len()),
            // Pop removes a mark if one is on top.
            b'0' if self.marks.last() == Some(&self.stack.len()) => {
                self.marks.pop();
            }
            b'0' => {
                self.pop()?;
            }
            b'1' => {
                self.pop_to_mark()?;
            }
            b'2' => {
                let top = self.top()?;
                self.stack.push(top);
            }

            b'N' => self.leaf(Object::None),
            0x88 => self.leaf(Object::Bool(true)),
            0x89 => self.leaf(Object::Bool(false)),
            b'K' => self.fixed_int::<1>(false)?,
            b'M' => self.fixed_int::<2>(false)?,
            b'J' => self.fixed_int::<4>(true)?,
            0x8a => self.long::<1>()?,
            0x8b => self.long::<4>()?,
            b'I' | b'L' => self.text_int()?,
            b'G' => {
                let value = f64::from_be_bytes(self.scanner.array()?);
                self.leaf(Object::Float(value));
            }
            b'F' => {
                let line = self.scanner.line()?;
                let value = std::str::from_utf8(line).ok().and_then(|text| text.parse().ok());
                let value = value.ok_or_else(|| self.damaged("not a number"))?;
                self.leaf(Object::Float(value));
            }

            b'C' | b'U' => self.bytes::<1>()?,
            b'B' | b'T' => self.bytes::<4>()?,
            0x8e | 0x96 => self.bytes::<8>()?,
            0x8c => self.text::<1>()?,
            b'X' => self.text::<4>()?,
            0x8d => self.text::<8>()?,
            b'S' => {
                let text = unquote(self.scanner.line()?).ok_or_else(|| self.damaged("not a quoted text"))?;
                self.leaf(Object::Bytes(text.into()));
            }
            b'V' => {
                let text = unescape(self.scanner.line()?).ok_or_else(|| self.damaged("not a text"))?;
                self.leaf(Object::Str(text.into()));
            }

            b']' => self.push(Kind::List, Vec::new()),
            b'}' => self.push(Kind::Dict, Vec::new()),
            0x8f => self.push(Kind::Set, Vec::new()),
            b')' => self.push(Kind::Tuple, Vec::new()),
            0x85 => self.tuple::<1>()?,
            0x86 => self.tuple::<2>()?,
            0x87 => self.tuple::<3>()?,
            b't' => self.marked(Kind::Tuple)?,
            b'l' => self.marked(Kind::List)?,
            b'd' => self.marked(Kind::Dict)?,
            0x91 => self.marked(Kind::Set)?,
            b'a' => {
                let element = self.pop()?;
                self.extend(vec![element], false)?;
            }
            b'e' | 0x90 => {
                let elements = self.pop_to_mark()?;
                self.extend(elements, false)?;
            }
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                self.extend(vec![key, value], true)?;
            }
            b'u' => {
                let entries = self.pop_to_mark()?;
                self.extend(entries, true)?;
            }

            b'c' => {
                let (module, name) = (self.scanner.line()?, self.scanner.line()?);
                let names = (std::str::from_utf8(module), std::str::from_utf8(name));
                let (Ok(module), Ok(name)) = names else { return Err(self.damaged("not a name")) };
                self.leaf(Object::global(module, name));
            }
            0x93 => self.stack_global()?,
            b'R' | 0x81 => self.call()?,
            b'b' => self.build()?,
            b'Q' => {
                let key = self.pop()?;
                self.push(Kind::Persistent, vec![key]);
            }
            b'P' => {
                let key = std::str::from_utf8(self.scanner.line()?).map_err(|_| self.damaged("not a text"))?;
                self.leaf(Object::Persistent(Object::from(key).into()));
            }

            0x94 => self.put(self.memo.len() as u32)?,
            b'q' => {
                let key = self.scanner.byte()?;
                self.put(key.into())?;
            }
            b'r' => {
                let key = u32::from_le_bytes(self.scanner.array()?);
                self.put(key)?;
            }
            b'p' => {
                let key = self.text_key()?;
                self.put(key)?;
            }
            b'h' => {
                let key = self.scanner.byte()?;
                self.get(key.into())?;
            }
            b'j' => {
                let key = u32::from_le_bytes(self.scanner.array()?);
                self.get(key)?;
            }
            b'g' => {
                let key = self.text_key()?;
                self.get(key)?;
            }
            opcode => return Err(PickleError::Opcode { opcode, offset: self.offset }),
        }
        Ok(None)
    }

    fn damaged(&self, problem: &'static str) -> PickleError {
        PickleError::Damaged { offset: self.offset, problem }
    }

    fn push(&mut self, kind: Kind, children: Vec<NodeId>) {
        self.stack.push(self.nodes.len() as NodeId);
        self.nodes.push(Node { kind, children });
    }

    fn leaf(&mut self, value: Object) {
        self.push(Kind::Leaf(value), Vec::new());
    }

    fn top(&self) -> Result<NodeId, PickleError> {
        let bottom = self.marks.last().copied().unwrap_or(0);
        self.stack[bottom..].last().copied().ok_or_else(|| self.damaged("the stack is empty"))
    }

    fn pop(&mut self) -> Result<NodeId, PickleError> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    fn pop_to_mark(&mut self) -> Result<Vec<NodeId>, PickleError> {
        let mark = self.marks.pop().ok_or_else(|| self.damaged("there is no mark"))?;
        Ok(self.stack.split_off(mark))
    }

    fn fixed_int<const N: usize>(&mut self, signed: bool) -> Result<(), PickleError> {
        let mut wide = [0; 8];
        wide[..N].copy_from_slice(&self.scanner.array::<N>()?);
        let unsigned = i64::from_le_bytes(wide);
        self.leaf(Object::Int(if signed { i64::from(unsigned as i32) } else { unsigned }));
        Ok(())
    }

    fn long<const N: usize>(&mut self) -> Result<(), PickleError> {
        let bytes = self.scanner.counted::<N>()?;
        self.leaf(int(bytes).map_or_else(|| Object::BigInt(bytes.into()), Object::Int));
        Ok(())
    }

    fn text_int(&mut self) -> Result<(), PickleError> {
        let line = self.scanner.line()?;
        let value = match line {
            b"00" => Some(Object::Bool(false)),
            b"01" => Some(Object::Bool(true)),
            _ => {
                let digits = line.strip_suffix(b"L").unwrap_or(line);
                std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()).map(Object::Int)
            }
        };
        let value = value.ok_or_else(|| self.damaged("not an integer of up to 64 bits"))?;
        self.leaf(value);
        Ok(())
    }

    fn text_key(&mut self) -> Result<u32, PickleError> {
        let key = std::str::from_utf8(self.scanner.line()?).ok().and_then(|digits| digits.parse().ok());
        key.ok_or_else(|| self.damaged("not the number of a shared value"))
    }

    fn bytes<const N: usize>(&mut self) -> Result<(), PickleError> {
        let bytes = self.scanner.counted::<N>()?;
        self.leaf(Object::Bytes(bytes.into()));
        Ok(())
    }

    fn text<const N: usize>(&mut self) -> Result<(), PickleError> {
        let text =
            std::str::from_utf8(self.scanner.counted::<N>()?).map_err(|_| self.damaged("a text is not UTF-8"))?;
        self.leaf(Object::from(text));
        Ok(())
    }

    fn tuple<const N: usize>(&mut self) -> Result<(), PickleError> {
        let mut elements = vec![0; N];
        for place in elements.iter_mut().rev() {
            *place = self.pop()?;
        }
        self.push(Kind::Tuple, elements);
        Ok(())
    }

    fn marked(&mut self, kind: Kind) -> Result<(), PickleError> {
        let children = self.pop_to_mark()?;
        if matches!(kind, Kind::Dict) && children.len() % 2 == 1 {
            return Err(self.damaged("a key has no value"));
        }
        self.push(kind, children);
        Ok(())
    }

    /// Adds elements, or alternating keys and values, to the object on top.
    fn extend(&mut self, added: Vec<NodeId>, as_pairs: bool) -> Result<(), PickleError> {
        if as_pairs && added.len() % 2 == 1 {
            return Err(self.damaged("a key has no value"));
        }
        let top = self.top()? as usize;
        let Node { kind, children } = &mut self.nodes[top];
        let fits = match kind {
            Kind::List | Kind::Set => !as_pairs,
            Kind::Dict => as_pairs,
            // A call takes elements if it makes a list, and entries if it makes a dictionary.
            Kind::Call { pairs, .. } => {
                let fits = *pairs == as_pairs || children.len() == 2;
                *pairs = as_pairs;
                fits
            }
            Kind::Leaf(_) | Kind::Tuple | Kind::Persistent => false,
        };
        if !fits {
            return Err(self.damaged("an element is added to an object that holds none"));
        }
        children.extend(added);
        Ok(())
    }

    fn stack_global(&mut self) -> Result<(), PickleError> {
        let (name, module) = (self.pop()? as usize, self.pop()? as usize);
        let global = match (&self.nodes[module].kind, &self.nodes[name].kind) {
            // Protocol 0, in which we write, ends names by line breaks; Python has no name with one.
            (Kind::Leaf(Object::Str(module)), Kind::Leaf(Object::Str(name)))
                if !module.contains('\n') && !name.contains('\n') =>
            {
                Object::global(module, name)
            }
            (Kind::Leaf(Object::Str(_)), Kind::Leaf(Object::Str(_))) => {
                return Err(self.damaged("a name has a line break"));
            }
            _ => return Err(self.damaged("a name is not a text")),
        };
        self.leaf(global);
        Ok(())
    }

    /// `function(*arguments)`, or `class.__new__(class, *arguments)`, which are equivalent here. Ordered dictionaries
    /// and the sets of old protocols become plain values, with copies of the elements, which count.
    fn call(&mut self) -> Result<(), PickleError> {
        let (arguments, function) = (self.pop()?, self.pop()?);
        let global = match &self.nodes[function as usize].kind {
            Kind::Leaf(value) => value.as_global(),
            _ => None,
        };
        let known = match global {
            Some(("collections", "OrderedDict")) => self.pairs(arguments).map(|pairs| (Kind::Dict, pairs)),
            Some(("__builtin__" | "builtins", "set" | "frozenset")) => {
                self.collection(arguments).map(|elements| (Kind::Set, elements.to_vec()))
            }
            _ => None,
        };
        let (kind, children) = match known {
            Some(copied) => {
                self.count(copied.1.len())?;
                copied
            }
            None => (Kind::Call { state: None, pairs: false }, vec![function, arguments]),
        };
        self.push(kind, children);
        Ok(())
    }

    /// The elements of the single list or tuple in `arguments`; empty without arguments.
    fn collection(&self, arguments: NodeId) -> Option<&[NodeId]> {
        match self.sequence(arguments)? {
            [] => Some(&[]),
            [only] => self.sequence(*only),
            _ => None,
        }
    }

    /// The argument of Python 2's `OrderedDict`, a list of pairs, as alternating keys and values.
    fn pairs(&self, arguments: NodeId) -> Option<Vec<NodeId>> {
        let mut turns = Vec::new();
        for &pair in self.collection(arguments)? {
            let &[key, value] = self.sequence(pair)? else { return None };
            turns.extend([key, value]);
        }
        Some(turns)
    }

    fn sequence(&self, id: NodeId) -> Option<&[NodeId]> {
        let node = &self.nodes[id as usize];
        matches!(node.kind, Kind::List | Kind::Tuple).then_some(&node.children)
    }

    fn build(&mut self) -> Result<(), PickleError> {
        let given = self.pop()?;
        let top = self.top()? as usize;
        match &mut self.nodes[top].kind {
            Kind::Call { state, .. } => *state = Some(given),
            // Attributes of a dictionary, such as the versions that PyTorch stores with its state.
            Kind::Dict => {}
            _ => return Err(self.damaged("a state is set on an object without one")),
        }
        Ok(())
    }

    fn put(&mut self, key: u32) -> Result<(), PickleError> {
        let top = self.top()?;
        self.memo.insert(key, top);
        Ok(())
    }

    fn get(&mut self, key: u32) -> Result<(), PickleError> {
        let shared = self.memo.get(&key).copied().ok_or_else(|| self.damaged("a shared value is missing"))?;
        self.stack.push(shared);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
