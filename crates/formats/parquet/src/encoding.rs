//! How Parquet writes numbers below a small one, such as places in a dictionary: runs of one number, and numbers of a few bits.

use crate::thrift::Fault;

const CUT: Fault = "a page ends early";

/// Calls `each` with the `count` numbers of `width` bits in `bytes`.
pub(crate) fn each_number(
    bytes: &[u8],
    width: u32,
    count: usize,
    mut each: impl FnMut(u32) -> Result<(), Fault>,
) -> Result<(), Fault> {
    if width > 32 {
        return Err("a page has numbers of more than 32 bits");
    }
    let width = width as usize;
    let mut at = 0;
    let mut left = count;
    while left > 0 {
        let head = varint(bytes, &mut at)?;
        let length = usize::try_from(head >> 1).unwrap_or(usize::MAX);
        if head & 1 == 1 {
            // Groups of eight numbers. Those of the last group may be missing.
            let packed = bytes.get(at..).ok_or(CUT)?;
            let packed = &packed[..packed.len().min(length.saturating_mul(width))];
            let numbers = length.saturating_mul(8).min(left);
            if numbers * width > packed.len() * 8 {
                return Err(CUT);
            }
            (0..numbers).try_for_each(|number| each(bits(packed, number * width, width)))?;
            at += packed.len();
            left -= numbers;
        } else {
            let value = bytes.get(at..at + width.div_ceil(8)).ok_or(CUT)?;
            let value = value.iter().rev().fold(0, |value, &byte| value << 8 | u32::from(byte));
            let numbers = length.min(left);
            (0..numbers).try_for_each(|_| each(value))?;
            at += width.div_ceil(8);
            left -= numbers;
        }
    }
    Ok(())
}

/// The number of `width` bits that begins at the bit `from`, least significant bits first.
fn bits(bytes: &[u8], from: usize, width: usize) -> u32 {
    let touched = &bytes[from / 8..(from + width).div_ceil(8)];
    let word = touched.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
    (word >> (from % 8) & ((1 << width) - 1)) as u32
}

fn varint(bytes: &[u8], at: &mut usize) -> Result<u64, Fault> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.get(*at).ok_or(CUT)?;
        *at += 1;
        number |= u64::from(byte & 127) << shift;
        if byte < 128 {
            return Ok(number);
        }
    }
    Err("a page has a number of more than 64 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_and_packed_numbers() {
        let check = |bytes: &[u8], width: u32, count: usize, expected: Result<&[u32], Fault>| {
            let mut found = Vec::new();
            let result = each_number(bytes, width, count, |number| {
                found.push(number);
                Ok(())
            });
            assert_eq!(result.map(|()| found.as_slice()), expected, "{bytes:?}");
        };
        check(&[], 3, 0, Ok(&[]));
        check(&[6, 5], 3, 3, Ok(&[5, 5, 5]));
        check(&[6, 5], 3, 2, Ok(&[5, 5]));
        check(&[4, 1, 2, 4, 3, 0], 9, 4, Ok(&[513, 513, 3, 3]));
        // The example of the format's description.
        check(&[3, 0x88, 0xC6, 0xFA], 3, 8, Ok(&[0, 1, 2, 3, 4, 5, 6, 7]));
        check(&[3, 0x88, 0xC6], 3, 5, Ok(&[0, 1, 2, 3, 4]));
        check(&[3, 0xFF, 0xFF, 0xFF, 0xFF], 32, 1, Ok(&[u32::MAX]));
        check(&[3], 0, 8, Ok(&[0; 8]));
        check(&[16], 0, 8, Ok(&[0; 8]));
        check(&[3, 0x88, 0xC6], 3, 8, Err(CUT));
        check(&[3], 3, 8, Err(CUT));
        check(&[6], 3, 3, Err(CUT));
        check(&[6, 5], 3, 4, Err(CUT));
        check(&[0xFF; 12], 3, 1, Err("a page has a number of more than 64 bits"));
        check(&[6, 5], 33, 3, Err("a page has numbers of more than 32 bits"));
    }
}
