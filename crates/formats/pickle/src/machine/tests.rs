//! Pickles of every protocol, and invalid ones.

use crate::{Limits, Object, PickleError, parse, write};

fn read(pickle: &[u8]) -> Result<Object, String> {
    let (value, consumed) = parse(pickle, &Limits::default()).map_err(|error| error.to_string())?;
    assert_eq!(consumed, pickle.len());
    Ok(value)
}

fn dict<const N: usize>(entries: [(&str, Object); N]) -> Object {
    Object::Dict(entries.map(|(key, value)| (Object::from(key), value)).into())
}

fn tuple(values: &[i64]) -> Object {
    values.iter().map(|&value| Object::Int(value)).collect()
}

/// Written by CPython 3.12 in each protocol from 0 to 4 (5 differs only in its number):
/// `{"a": [1, -2, 300, 70000, 1 << 40, -1 << 40], "b": (1.5, None, True, False), "c": b"\0\xff", "d": "Gänse\n",
/// "e": {1, 2}, "f": ((), (1,), (1, 2), (1, 2, 3, 4)), "o": OrderedDict(x=1)}`
const PROTOCOLS: [&[u8]; 5] = [
    b"(dp0\nVa\np1\n(lp2\nI1\naI-2\naI300\naI70000\naL1099511627776L\naL-1099511627776L\nasVb\np3\n(F1.5\nNI01\nI00\n\
      tp4\nsVc\np5\nc_codecs\nencode\np6\n(V\\u0000\xff\np7\nVlatin1\np8\ntp9\nRp10\nsVd\np11\nVG\xe4nse\\u000a\np12\n\
      sVe\np13\nc__builtin__\nset\np14\n((lp15\nI1\naI2\natp16\nRp17\nsVf\np18\n((t(I1\ntp19\n(I1\nI2\ntp20\n(I1\n\
      I2\nI3\nI4\ntp21\ntp22\nsVo\np23\nccollections\nOrderedDict\np24\n(tRp25\nVx\np26\nI1\nss.",
    b"}q\x00(X\x01\x00\x00\x00aq\x01]q\x02(K\x01J\xfe\xff\xff\xffM,\x01Jp\x11\x01\x00L1099511627776L\n\
      L-1099511627776L\neX\x01\x00\x00\x00bq\x03(G?\xf8\x00\x00\x00\x00\x00\x00NI01\nI00\ntq\x04X\x01\x00\x00\x00c\
      q\x05c_codecs\nencode\nq\x06(X\x03\x00\x00\x00\x00\xc3\xbfq\x07X\x06\x00\x00\x00latin1q\x08tq\tRq\n\
      X\x01\x00\x00\x00dq\x0bX\x07\x00\x00\x00G\xc3\xa4nse\nq\x0cX\x01\x00\x00\x00eq\rc__builtin__\nset\nq\x0e\
      (]q\x0f(K\x01K\x02etq\x10Rq\x11X\x01\x00\x00\x00fq\x12()(K\x01tq\x13(K\x01K\x02tq\x14(K\x01K\x02K\x03K\x04tq\x15\
      tq\x16X\x01\x00\x00\x00oq\x17ccollections\nOrderedDict\nq\x18)Rq\x19X\x01\x00\x00\x00xq\x1aK\x01su.",
    b"\x80\x02}q\x00(X\x01\x00\x00\x00aq\x01]q\x02(K\x01J\xfe\xff\xff\xffM,\x01Jp\x11\x01\x00\
      \x8a\x06\x00\x00\x00\x00\x00\x01\x8a\x06\x00\x00\x00\x00\x00\xffeX\x01\x00\x00\x00bq\x03\
      (G?\xf8\x00\x00\x00\x00\x00\x00N\x88\x89tq\x04X\x01\x00\x00\x00cq\x05c_codecs\nencode\nq\x06\
      X\x03\x00\x00\x00\x00\xc3\xbfq\x07X\x06\x00\x00\x00latin1q\x08\x86q\tRq\nX\x01\x00\x00\x00dq\x0b\
      X\x07\x00\x00\x00G\xc3\xa4nse\nq\x0cX\x01\x00\x00\x00eq\rc__builtin__\nset\nq\x0e]q\x0f(K\x01K\x02e\x85q\x10\
      Rq\x11X\x01\x00\x00\x00fq\x12()K\x01\x85q\x13K\x01K\x02\x86q\x14(K\x01K\x02K\x03K\x04tq\x15tq\x16\
      X\x01\x00\x00\x00oq\x17ccollections\nOrderedDict\nq\x18)Rq\x19X\x01\x00\x00\x00xq\x1aK\x01su.",
    b"\x80\x03}q\x00(X\x01\x00\x00\x00aq\x01]q\x02(K\x01J\xfe\xff\xff\xffM,\x01Jp\x11\x01\x00\
      \x8a\x06\x00\x00\x00\x00\x00\x01\x8a\x06\x00\x00\x00\x00\x00\xffeX\x01\x00\x00\x00bq\x03\
      (G?\xf8\x00\x00\x00\x00\x00\x00N\x88\x89tq\x04X\x01\x00\x00\x00cq\x05C\x02\x00\xffq\x06X\x01\x00\x00\x00dq\x07\
      X\x07\x00\x00\x00G\xc3\xa4nse\nq\x08X\x01\x00\x00\x00eq\tcbuiltins\nset\nq\n]q\x0b(K\x01K\x02e\x85q\x0cRq\r\
      X\x01\x00\x00\x00fq\x0e()K\x01\x85q\x0fK\x01K\x02\x86q\x10(K\x01K\x02K\x03K\x04tq\x11tq\x12\
      X\x01\x00\x00\x00oq\x13ccollections\nOrderedDict\nq\x14)Rq\x15X\x01\x00\x00\x00xq\x16K\x01su.",
    b"\x80\x04\x95\xab\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01a\x94]\x94(K\x01J\xfe\xff\xff\xffM,\x01Jp\x11\x01\x00\
      \x8a\x06\x00\x00\x00\x00\x00\x01\x8a\x06\x00\x00\x00\x00\x00\xffe\x8c\x01b\x94\
      (G?\xf8\x00\x00\x00\x00\x00\x00N\x88\x89t\x94\x8c\x01c\x94C\x02\x00\xff\x94\x8c\x01d\x94\x8c\x07G\xc3\xa4nse\n\x94\
      \x8c\x01e\x94\x8f\x94(K\x01K\x02\x90\x8c\x01f\x94()K\x01\x85\x94K\x01K\x02\x86\x94(K\x01K\x02K\x03K\x04t\x94t\x94\
      \x8c\x01o\x94\x8c\x0bcollections\x94\x8c\x0bOrderedDict\x94\x93\x94)R\x94\x8c\x01x\x94K\x01su.",
];

#[test]
fn every_protocol_says_the_same() {
    let integers = [1, -2, 300, 70000, 1 << 40, -1 << 40].map(Object::Int);
    let expected = |bytes: Object| {
        dict([
            ("a", Object::List(integers.clone().into())),
            ("b", [Object::Float(1.5), Object::None, Object::Bool(true), Object::Bool(false)].into_iter().collect()),
            ("c", bytes),
            ("d", Object::from("Gänse\n")),
            ("e", Object::Set([1, 2].map(Object::Int).into())),
            ("f", [tuple(&[]), tuple(&[1]), tuple(&[1, 2]), tuple(&[1, 2, 3, 4])].into_iter().collect()),
            ("o", dict([("x", Object::Int(1))])),
        ])
    };
    let encoded = Object::call(Object::global("_codecs", "encode"), ["\0\u{ff}", "latin1"].map(Object::from));
    for (protocol, pickle) in PROTOCOLS.iter().enumerate() {
        let bytes = if protocol < 3 { encoded.clone() } else { Object::Bytes([0, 255].into()) };
        let found = read(pickle).unwrap();
        assert_eq!(found, expected(bytes), "protocol {protocol}");
        assert_eq!(found.get("c").unwrap().to_bytes().unwrap().as_ref(), [0, 255]);
        assert_eq!(read(&write(&found)).unwrap(), found, "protocol {protocol} written again");
    }
}

#[test]
fn opcodes_one_by_one() {
    let check = |pickle: &[u8], expected: Object| assert_eq!(read(pickle), Ok(expected), "{pickle:?}");
    check(b"S'it\\'s \\x41\\\\\\n'\n.", Object::Bytes((*b"it's A\\\n").into()));
    check(b"U\x02\x00\xff.", Object::Bytes([0, 255].into()));
    check(b"T\x02\0\0\0\x00\xff.", Object::Bytes([0, 255].into()));
    check(b"\x8e\x01\0\0\0\0\0\0\0\x07.", Object::Bytes([7].into()));
    check(b"\x8d\x01\0\0\0\0\0\0\0z.", Object::from("z"));
    check(b"V\\U0001F600\xfc\n.", Object::from("😀ü"));
    check(b"\x8a\x00.", Object::Int(0));
    check(b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f.", Object::Int(i64::MAX));
    let magic = b"\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.";
    check(magic, Object::BigInt((*b"l\xfc\x9cF\xf9 j\xa8P\x19").into()));
    check(b"(K\x01K\x022K\x03t.", tuple(&[1, 2, 2, 3]));
    check(b"(K\x010K\x02(K\x0910t.", Object::Tuple([].into()));
    check(b"(K\x01K\x02d.", Object::Dict([(Object::Int(1), Object::Int(2))].into()));
    check(b"(K\x01\x91.", Object::Set([Object::Int(1)].into()));
    check(b"K\x05Q.", Object::Persistent(Object::Int(5).into()));
    check(b"Pkey\n.", Object::Persistent(Object::from("key").into()));
    check(b"cos\nsystem\n(S'rm'\ntR.", {
        let function = Object::global("os", "system");
        Object::call(function, [Object::Bytes((*b"rm").into())])
    });
    // Python 2 pickles an ordered dictionary with its entries as a list of lists.
    let pairs = Object::Dict([(Object::Int(1), Object::Int(2))].into());
    check(b"ccollections\nOrderedDict\n](](K\x01K\x02ee\x85R.", pairs);
}

/// A list that grows after it was shared grows at every occurrence.
#[test]
fn shared_values_are_one() {
    let grown = Object::List([Object::Int(1)].into());
    assert_eq!(read(b"]q\x00h\x00K\x01a\x86."), Ok([grown.clone(), grown].into_iter().collect()));
}

#[test]
fn classes_keep_state_elements_and_entries() {
    let class = "cm\nC\n";
    let check = |rest: &[u8], state: Option<i64>, elements: &[i64], entries: &[(i64, i64)]| {
        let value = read(&[class.as_bytes(), b")\x81", rest, b"."].concat()).unwrap();
        let call = value.as_call().unwrap();
        let elements: Vec<_> = elements.iter().map(|&value| Object::Int(value)).collect();
        let entries: Vec<_> = entries.iter().map(|&(key, value)| (Object::Int(key), Object::Int(value))).collect();
        assert_eq!((&call.state, &call.elements, &call.entries), (&state.map(Object::Int), &elements, &entries));
        assert_eq!(call.function.as_global(), Some(("m", "C")));
    };
    check(b"", None, &[], &[]);
    check(b"K\x07b", Some(7), &[], &[]);
    check(b"(K\x01K\x02e", None, &[1, 2], &[]);
    check(b"K\x01a(K\x02e", None, &[1, 2], &[]);
    check(b"(K\x01K\x02uK\x03K\x04s", None, &[], &[(1, 2), (3, 4)]);
}

#[test]
fn invalid_pickles() {
    let check = |pickle: &[u8], expected: &str| {
        let found = parse(pickle, &Limits::default()).unwrap_err().to_string();
        assert_eq!(found, expected, "{pickle:?}");
    };
    let short = "the pickle is cut short";
    for pickle in [&b""[..], b"N", b"K", b"J\0\0\0", b"X\xff\xff\xff\xffabc", b"S'a'", b"c", b"cos\n", b"\x95\0"] {
        check(pickle, short);
    }
    check(b"\x8e\xff\xff\xff\xff\xff\xff\xff\xff.", short);
    check(b"\x8b\xff\xff\xff\xff.", short);
    check(b"\x80\x06N.", "the pickle is damaged at byte 0: its protocol is newer than 5");
    check(b"N\xff.", "opcode 0xff at byte 1 of the pickle is not one that data files use");
    // Extension registry, old classes, keyword arguments, buffers outside the pickle.
    for opcode in [0x82, 0x83, 0x84, b'i', b'o', 0x92, 0x97, 0x98] {
        check(&[opcode], &format!("opcode {opcode:#04x} at byte 0 of the pickle is not one that data files use"));
    }
    let damaged = |at: usize, problem: &str| format!("the pickle is damaged at byte {at}: {problem}");
    check(b".", &damaged(0, "the stack is empty"));
    check(b"K\x01(a.", &damaged(3, "the stack is empty"));
    check(b"t.", &damaged(0, "there is no mark"));
    check(b"(K\x01d.", &damaged(3, "a key has no value"));
    check(b"}(K\x01u.", &damaged(4, "a key has no value"));
    check(b"](K\x01K\x02u.", &damaged(6, "an element is added to an object that holds none"));
    check(b")K\x01a.", &damaged(3, "an element is added to an object that holds none"));
    check(b"cm\nC\n)\x81K\x01aK\x01K\x02s.", &damaged(14, "an element is added to an object that holds none"));
    check(b"NNb.", &damaged(2, "a state is set on an object without one"));
    check(b"h\0.", &damaged(0, "a shared value is missing"));
    check(b"gx\n.", &damaged(0, "not the number of a shared value"));
    check(b"K\x01K\x02\x93.", &damaged(4, "a name is not a text"));
    // It was read, and written as two names.
    check(b"X\x01\0\0\0mX\x02\0\0\0C\n\x93.", &damaged(13, "a name has a line break"));
    check(b"c\xff\n\xff\n.", &damaged(0, "not a name"));
    check(b"X\x01\0\0\0\xff.", &damaged(0, "a text is not UTF-8"));
    check(b"I99999999999999999999\n.", &damaged(0, "not an integer of up to 64 bits"));
    check(b"Fx\n.", &damaged(0, "not a number"));
    check(b"S'a\n.", &damaged(0, "not a quoted text"));
    check(b"V\\u12\n.", &damaged(0, "not a text"));
    check(b"V\\ud800\n.", &damaged(0, "not a text"));
}

#[test]
fn limits_hold() {
    let limits = Limits { values: 100, depth: 10 };
    let check = |pickle: Vec<u8>, expected: Result<(), PickleError>| {
        assert_eq!(parse(&pickle, &limits).map(|_| ()), expected);
    };
    let nested = |levels: usize| [&b"]".repeat(levels)[..], &b"a".repeat(levels - 1), b"."].concat();
    check(nested(10), Ok(()));
    check(nested(11), Err(PickleError::TooDeep(10)));
    check([&b"N0".repeat(49)[..], b"N."].concat(), Ok(()));
    check([&b"N0".repeat(50)[..], b"N."].concat(), Err(PickleError::TooMany(100)));
    // Each list holds the previous one four times: 4^7 values from 60 opcodes.
    let laughs = [b"]".to_vec(), b"q\0](h\0h\0h\0h\0e".repeat(7), b".".to_vec()].concat();
    check(laughs, Err(PickleError::TooMany(100)));
    check(b"]q\0h\0a.".to_vec(), Err(PickleError::Cycle));
    check(b"]q\0h\0\x85a.".to_vec(), Err(PickleError::Cycle));
    check(b"cm\nC\n)\x81q\0h\0b.".to_vec(), Err(PickleError::Cycle));
    // A discarded cycle does no harm.
    check(b"]q\0h\0a0N.".to_vec(), Ok(()));
}

/// A value of the greatest depth is dropped, compared, printed and written on a test's stack.
#[test]
fn depth_fits_the_stack() {
    let levels = Limits::DEEPEST;
    let nested = [&b"(".repeat(levels)[..], &b"t".repeat(levels), b"."].concat();
    let (value, _) = parse(&nested, &Limits { values: usize::MAX, depth: usize::MAX }).unwrap();
    assert_eq!(value, value.clone());
    assert_eq!(format!("{value:?}").matches("Tuple").count(), levels);
    assert_eq!(write(&value).len(), 2 + 1 + levels - 1 + 1);
    let deeper = [&b"("[..], &nested[..2 * levels], b"t."].concat();
    let refused = parse(&deeper, &Limits { values: usize::MAX, depth: usize::MAX });
    assert_eq!(refused, Err(PickleError::TooDeep(levels)));
}

#[test]
fn several_in_a_row() {
    let row = b"K\x01.K\x02.rest";
    let (first, len) = parse(row, &Limits::default()).unwrap();
    let (second, _) = parse(&row[len..], &Limits::default()).unwrap();
    assert_eq!((first, second, len), (Object::Int(1), Object::Int(2), 3));
}
