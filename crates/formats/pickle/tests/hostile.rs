//! Hostile pickles: for any bytes, reading ends in a value or an error, and takes no more memory than the limits say.

use enmasse_pickle::numpy::byte_array;
use enmasse_pickle::{Limits, PickleError, parse, write};
use proptest::prelude::*;
use test_support::heap::peak_of;

const LIMITS: Limits = Limits { values: 10_000, depth: 64 };

/// 256 bytes per value, as documented for `Limits`; a value takes an opcode, so at least a byte. Texts are in the
/// pickle.
fn bound(pickle: &[u8]) -> usize {
    1024 + 256 * pickle.len().min(LIMITS.values) + 2 * pickle.len()
}

fn check(pickle: &[u8]) -> Result<(), PickleError> {
    let (result, peak) = peak_of(|| parse(pickle, &LIMITS));
    assert!(peak <= bound(pickle), "{} bytes of pickle took {peak} bytes: {:?}", pickle.len(), result.map(|_| ()));
    let (value, consumed) = result?;
    assert!(consumed <= pickle.len());
    let _ = byte_array(&value);
    let again = write(&value);
    // The result can be walked and written, since sharing is bounded too; only texts may be as long as the pickle.
    assert!(again.len() <= LIMITS.values * (pickle.len() + 16));
    Ok(())
}

#[test]
fn the_most_expensive_values() {
    let dearest: [(&str, &[u8]); 9] = [
        ("lists", b"]"),
        ("tuples of one", b")\x85"),
        ("empty texts", b"U\0"),
        ("dictionaries", b"}"),
        ("calls", b"N)R"),
        ("shared values", b"N\x94"),
        ("marks", b"("),
        ("duplicates", b"2"),
        ("long numbers of shared values", b"]r\x01\x02\x03\x04"),
    ];
    for (name, piece) in dearest {
        for len in [100, 20_000] {
            let pickle = [b"]", &piece.repeat(len / piece.len())[..], b"t."].concat();
            let outcome = check(&pickle);
            assert!(len == 100 || outcome.is_err(), "{name} went beyond the limit unseen");
        }
        // The same within the limit, so that values are made from it.
        let all = [b"(]", &piece.repeat(4000 / piece.len())[..], b"t."].concat();
        let _ = check(&all);
    }
}

#[test]
fn lengths_are_not_trusted() {
    for opcode in [b'X', b'T', b'B', 0x8b] {
        let pickle = [&[opcode][..], &[0xFF; 4], b"abc."].concat();
        assert_eq!(check(&pickle), Err(PickleError::CutShort));
    }
    for opcode in [0x8d, 0x8e, 0x96] {
        for len in [u64::MAX, 1 << 40, i64::MAX as u64] {
            let pickle = [&[opcode][..], &len.to_le_bytes(), b"abc."].concat();
            assert_eq!(check(&pickle), Err(PickleError::CutShort));
        }
    }
}

/// Written by CPython: nested containers, shared values, a NumPy array, an ordered dictionary with attributes.
const REAL: [&[u8]; 3] = [
    b"\x80\x02}q\x00(X\x01\x00\x00\x00aq\x01]q\x02(K\x01J\xfe\xff\xff\xffM,\x01h\x02)K\x01\x85q\x13\x8a\x01\x07e\
      U\x01bq\x03(G?\xf8\x00\x00\x00\x00\x00\x00N\x88\x89tq\x04X\x01\x00\x00\x00oq\x17ccollections\nOrderedDict\n\
      q\x18)Rq\x19X\x01\x00\x00\x00xq\x1aK\x01s}U\x05_metaNsbu.",
    b"\x80\x02cnumpy._core.multiarray\n_reconstruct\nq\x00cnumpy\nndarray\nq\x01K\x00\x85q\x02c_codecs\nencode\nq\x03\
      X\x01\x00\x00\x00bq\x04X\x06\x00\x00\x00latin1q\x05\x86q\x06Rq\x07\x87q\x08Rq\t(K\x01K\x02K\x02\x86q\ncnumpy\ndtype\n\
      q\x0bX\x02\x00\x00\x00u1q\x0c\x89\x88\x87q\rRq\x0e(K\x03X\x01\x00\x00\x00|q\x0fNNNJ\xff\xff\xff\xff\
      J\xff\xff\xff\xffK\x00tq\x10b\x89h\x03X\x04\x00\x00\x00\x00\x01\x02\x03q\x11h\x05\x86q\x12Rq\x13tq\x14b.",
    b"\x80\x05\x95z\x00\x00\x00\x00\x00\x00\x00\x8c\x13numpy._core.numeric\x94\x8c\x0b_frombuffer\x94\x93\x94\
      (\x96\x04\x00\x00\x00\x00\x00\x00\x00\x00\x01\x02\x03\x94\x8c\x05numpy\x94\x8c\x05dtype\x94\x93\x94\x8c\x02u1\x94\
      \x89\x88\x87\x94R\x94(K\x03\x8c\x01|\x94NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00t\x94bK\x02K\x02\x86\x94\
      \x8c\x01C\x94t\x94R\x94.",
];

/// Opcodes with their arguments: random bytes seldom form any.
const PIECES: [&[u8]; 41] = [
    b"(",
    b"0",
    b"1",
    b"2",
    b"N",
    b"K\x01",
    b"I1\n",
    b"G\0\0\0\0\0\0\0\0",
    b"U\x01a",
    b"X\x01\0\0\0b",
    b"S'a'\n",
    b"]",
    b"}",
    b")",
    b"\x8f",
    b"t",
    b"\x85",
    b"\x86",
    b"\x87",
    b"l",
    b"d",
    b"a",
    b"e",
    b"s",
    b"u",
    b"\x90",
    b"\x91",
    b"cm\nC\n",
    b"ccollections\nOrderedDict\n",
    b"cbuiltins\nset\n",
    b"cbuiltins\nfrozenset\n",
    b"R",
    b"\x81",
    b"b",
    b"Q",
    b"q\0",
    b"q\x01",
    b"\x94",
    b"h\0",
    b"h\x01",
    b"\x93",
];
/// Operands for opcodes that need some: values on the stack, and two functions and a list under numbers.
const START: &[u8] = b"cbuiltins\nset\nq\x02ccollections\nOrderedDict\nq\x03]q\x04N]}(]}]q\x01}q\0cm\nC\n)\x81";

/// 1.3 MB took more than 100 GB: each call copied the elements of one shared list.
#[test]
fn calls_that_copy_a_shared_list_are_counted() {
    let check_call = |function: &str, element: &[u8]| {
        let list = [b"](", &element.repeat(1000)[..], b"e\x85q\0"].concat();
        let calls = format!("c{function}\nq\x01{}", "h\x01h\0R".repeat(500));
        assert_eq!(check(&[&list[..], calls.as_bytes(), b"."].concat()), Err(PickleError::TooMany(LIMITS.values)));
    };
    check_call("builtins\nset", b"N");
    check_call("builtins\nfrozenset", b"N");
    check_call("collections\nOrderedDict", b"NN\x86");
}

/// Programs that leave a value on the stack or lengthen a shared one, and are valid in any order after
/// [`START_OF_PHRASES`]: together they use every opcode that keeps anything.
const PHRASES: [&[u8]; 32] = [
    b"N",
    b"I1\n",
    b"\x8a\x09\0\0\0\0\0\0\0\0\x01",
    b"G\0\0\0\0\0\0\0\0",
    b"U\x01a",
    b"X\0\0\0\0",
    b"S'a'\n",
    b"Va\n",
    b"Pa\n",
    b"]",
    b"}",
    b")",
    b"\x8f",
    b"2",
    b"N\x94",
    b"Nr\x01\x02\x03\x04",
    b"N\x85",
    b"NN\x86",
    b"(NNNt",
    b"(NNl",
    b"(NNd",
    b"(N\x91",
    b"cm\nC\n",
    b"N)R",
    b"N)\x81}b",
    b"NQ",
    b"h\x01h\x03\x85R",
    b"h\x02h\x03\x85R",
    b"h\x03Na0",
    b"h\x03NN\x86a0",
    b"h\x04NNs0",
    b"h\x05(NNe0",
];
/// Shared: two functions, a list, a dictionary and a call.
const START_OF_PHRASES: &[u8] = b"(cbuiltins\nset\nq\x01ccollections\nOrderedDict\nq\x02]q\x03}q\x04cm\nC\n)\x81q\x05";

/// Climbs towards the programs of limited length that take the most memory: phrases are inserted, removed, and repeated in runs,
/// which multiplies anything that some opcode makes expensive.
#[test]
fn a_search_for_the_most_expensive_program_stays_within_the_bound() {
    const MAX: usize = 1500;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut below = move |n: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % n as u64) as usize
    };
    let cost = |program: &[usize]| {
        let phrases: Vec<&[u8]> = program.iter().map(|&phrase| PHRASES[phrase]).collect();
        let pickle = [START_OF_PHRASES, &phrases.concat(), b"t."].concat();
        let (_, peak) = peak_of(|| parse(&pickle, &LIMITS));
        assert!(peak <= bound(&pickle), "{} bytes of pickle took {peak} bytes: {pickle:?}", pickle.len());
        peak
    };
    for _ in 0..4 {
        let mut best: Vec<usize> = (0..20).map(|_| below(PHRASES.len())).collect();
        let mut highest = cost(&best);
        for _ in 0..400 {
            let mut next = best.clone();
            let at = below(next.len());
            match below(4) {
                0 => next[at] = below(PHRASES.len()),
                1 => next.insert(at, below(PHRASES.len())),
                2 if next.len() > 1 => {
                    next.remove(at);
                }
                _ => {
                    let run = next[at..next.len().min(at + 1 + below(8))].to_vec();
                    let times = 1 << below(9);
                    next.splice(at..at, run.repeat(times));
                }
            }
            next.truncate(MAX);
            // A program that is as expensive may lead to one that is more so.
            let found = cost(&next);
            if found >= highest {
                (best, highest) = (next, found);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn mutations_of_real_pickles(
        which in 0..REAL.len(), cut: Option<usize>, changes in proptest::collection::vec((any::<usize>(), any::<u8>()), 0..4),
        moved in any::<Option<(usize, usize, usize)>>(),
    ) {
        let mut pickle = REAL[which].to_vec();
        for (at, byte) in changes {
            let at = at % pickle.len();
            pickle[at] = byte;
        }
        if let Some((from, len, to)) = moved {
            let from = from % pickle.len();
            let piece = pickle[from..from + len % (pickle.len() - from)].to_vec();
            let to = to % pickle.len();
            pickle.splice(to..to, piece);
        }
        if let Some(cut) = cut {
            pickle.truncate(cut % pickle.len());
        }
        let _ = check(&pickle);
    }

    #[test]
    fn any_opcodes(pieces in proptest::collection::vec(proptest::sample::select(&PIECES[..]), 0..60)) {
        let _ = check(&[START, &pieces.concat(), b"."].concat());
    }

    #[test]
    fn any_bytes(bytes: Vec<u8>) {
        let _ = check(&bytes);
    }
}
