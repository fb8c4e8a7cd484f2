//! An image's coefficients in the form that is decoded fastest.
//!
//! The Huffman codes of a JPEG must be read one after the other, from the first one on. Here a block says which of its coefficients are
//! not zero, and which of these are larger than one, in a mask each; rows of MCUs can be entered anywhere, and blocks are left out by
//! counting bits. The segments before the first scan are those of a JPEG. In the place of the scan there are
//!
//! - a segment with the marker [`MARKER`] and the content [`SIGNATURE`];
//! - for each row of MCUs, and for the end of the last one, where it begins: a number of four bytes, counted from the end of these;
//! - the [rows](Row), [`SLACK`] zeros, and the end marker.
//!
//! All numbers begin with their lowest byte, and bits of a stream follow each other from the lowest on.

#[cfg(target_arch = "x86_64")]
mod avx512;
mod read;
mod write;

pub(crate) use write::Writer;

use crate::Error;

/// JPG0, which the standard reserves for extensions (T.81, table B.1).
pub(crate) const MARKER: u8 = 0xF0;

/// The last byte is the version.
pub(crate) const SIGNATURE: [u8; 8] = *b"enmasse\x01";

/// Bytes after the last row, so that what belongs to a block can be read with what follows. No block has more of any kind.
pub(crate) const SLACK: usize = 128;

/// In the head of a block: what is left of a value has two bytes.
const WIDE: u8 = 1 << 6;

/// In the head of a row: differences of first coefficients have two bytes.
const WIDE_FIRSTS: usize = 1 << 31;

/// Where nothing is left of a large value, its four bits are less.
const MAX_SMALL: u16 = 15;

const DAMAGED: Error = Error::Damaged("its coefficients are damaged");

/// A block but for its first coefficient. Places are in zigzag order, and values those that are not zero.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Coded<'a> {
    /// Bit `k` is set if the coefficient of place `k`, from 1 on, is not zero.
    pub places: u64,
    /// The values that are below zero, in their order.
    pub below: u64,
    /// The values that are neither 1 nor -1: large ones.
    pub large: u64,
    /// Their absolute values less two, four bits each and at most [`MAX_SMALL`]. The first four bits are another block's if it is `odd`.
    pub small: &'a [u8; SLACK],
    pub odd: bool,
    /// What is left of the others.
    pub rest: &'a [u8; SLACK],
    /// Whether that has two bytes for each.
    pub wide: bool,
}

impl Coded<'_> {
    /// The four bits of a large value.
    #[inline(always)]
    fn small(&self, number: usize) -> u16 {
        let at = number + usize::from(self.odd);
        u16::from(self.small[at / 2 % SLACK] >> (at % 2 * 4) & 15)
    }

    /// Number of values of which something is left.
    #[inline(always)]
    fn left(&self) -> usize {
        let count = self.large.count_ones();
        let left = |at: u32| {
            // All four bits are set.
            let bits = bits(self.small, (at as usize + usize::from(self.odd)) * 4, ((count - at) * 4).min(64));
            let pairs = bits & bits >> 1;
            (pairs & pairs >> 2 & 0x1111_1111_1111_1111).count_ones() as usize
        };
        (0..count).step_by(16).map(left).sum()
    }

    /// Calls `put` with the place and the value of each coefficient that is not zero.
    #[inline(always)]
    pub fn values(&self, mut put: impl FnMut(usize, i16)) {
        let (mut places, mut below, mut large) = (self.places, self.below, self.large);
        let (mut number, mut at) = (0, 0);
        while places > 0 {
            // Without branches, since values are large at random.
            let is_large = (large & 1) as u16;
            let size = 1 + is_large * (1 + self.small(number));
            let is_left = u16::from(size == 2 + MAX_SMALL);
            let byte = |at: usize| u16::from(self.rest[at % SLACK]);
            let rest = if self.wide { byte(2 * at) | byte(2 * at + 1) << 8 } else { byte(at) };
            let size = size.wrapping_add(is_left * rest) as i16;
            (number, at) = (number + usize::from(is_large), at + usize::from(is_left));
            let value = if below & 1 > 0 { size.wrapping_neg() } else { size };
            put(places.trailing_zeros() as usize, value);
            (places, below, large) = (places & (places - 1), below >> 1, large >> 1);
        }
    }
}

/// What has not been read of a row of MCUs. Its bytes are
///
/// - three numbers of four bytes: those of the stream of places, with a [flag](WIDE_FIRSTS), of that of signs, and of that of small values;
/// - for each block in the order of a scan a head: the last place of a value, and a [flag](WIDE);
/// - for each block the difference of its first coefficient from that of the component's block before, of one or two bytes. Before the
///   first block it is 0;
/// - for each block a bit for each place from 1 to the last one, whether there is a value;
/// - for each value a bit, whether it is below zero;
/// - for each value a bit, whether it is large, neither 1 nor -1;
/// - for each large value four bits, its absolute value less two if that is below [`MAX_SMALL`];
/// - for each of the others what is left of it, one byte or two.
#[derive(Clone, Debug)]
pub(crate) struct Row<'a> {
    data: &'a [u8],
    /// The next byte of each.
    head: usize,
    first: usize,
    rest: usize,
    wide_firsts: bool,
    /// The next bit of each.
    places: usize,
    below: usize,
    large: usize,
    /// The next four bits.
    small: usize,
}

impl<'a> Row<'a> {
    /// A row that begins at a place of the data and has so many blocks.
    fn new(data: &'a [u8], start: usize, blocks: usize) -> Result<Self, Error> {
        let number = |at: usize| number(data, start + at).map(|number| number as usize).ok_or(DAMAGED);
        let (of_places, of_values, of_small) = (number(0)?, number(4)?, number(8)?);
        let wide_firsts = of_places & WIDE_FIRSTS > 0;
        let head = start + 12;
        let first = head + blocks;
        let places = first + if wide_firsts { 2 * blocks } else { blocks };
        let below = places + (of_places & !WIDE_FIRSTS);
        let (large, small) = (below + of_values, below + 2 * of_values);
        let rest = small + of_small;
        let (places, below, large, small) = (places * 8, below * 8, large * 8, small * 2);
        Ok(Row { data, head, first, rest, wide_firsts, places, below, large, small })
    }

    /// The difference of the next block's first coefficient.
    #[inline(always)]
    fn difference(&mut self) -> Result<i16, Error> {
        let bytes: &[u8; 2] = self.data.get(self.first..).and_then(|rest| rest.first_chunk()).ok_or(DAMAGED)?;
        self.first += 1 + usize::from(self.wide_firsts);
        Ok(if self.wide_firsts { i16::from_le_bytes(*bytes) } else { i16::from(bytes[0] as i8) })
    }

    /// The next block, and its first coefficient given that of the component's block before.
    #[inline(always)]
    pub fn next(&mut self, previous: &mut i16) -> Result<Coded<'a>, Error> {
        *previous = previous.wrapping_add(self.difference()?);
        self.coded()
    }

    #[inline(always)]
    fn coded(&mut self) -> Result<Coded<'a>, Error> {
        let head = *self.data.get(self.head).ok_or(DAMAGED)?;
        let last = u32::from(head & 63);
        let places = bits(chunk(self.data, self.places / 8)?, self.places % 8, last) << 1;
        let values = places.count_ones();
        let below = bits(chunk(self.data, self.below / 8)?, self.below % 8, values);
        let large = bits(chunk(self.data, self.large / 8)?, self.large % 8, values);
        let (small, rest) = (chunk(self.data, self.small / 2)?, chunk(self.data, self.rest)?);
        let coded =
            Coded { places, below, large, small, odd: !self.small.is_multiple_of(2), rest, wide: head & WIDE > 0 };
        self.head += 1;
        self.places += last as usize;
        self.below += values as usize;
        self.large += values as usize;
        self.small += large.count_ones() as usize;
        self.rest += coded.left() << u32::from(coded.wide);
        Ok(coded)
    }

    /// Leaves out the blocks of so many MCUs, whose blocks belong to these components.
    pub fn skip(&mut self, mcus: usize, components: &[u8], previous: &mut [i16; 3]) -> Result<(), Error> {
        for _ in 0..mcus {
            for &component in components {
                let previous = &mut previous[usize::from(component)];
                *previous = previous.wrapping_add(self.difference()?);
            }
        }
        // What is left of values is not counted any faster.
        (0..mcus * components.len()).try_for_each(|_| self.coded().map(|_| ()))
    }
}

/// The number of four bytes at a place.
fn number(data: &[u8], at: usize) -> Option<u32> {
    data.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

/// The bytes from a place on.
#[inline(always)]
fn chunk(data: &[u8], at: usize) -> Result<&[u8; SLACK], Error> {
    data.get(at..).and_then(|rest| rest.first_chunk()).ok_or(DAMAGED)
}

/// The `count` bits from a place on, at most 64.
#[inline(always)]
fn bits(data: &[u8; SLACK], from: usize, count: u32) -> u64 {
    let low = data[from / 8 % (SLACK / 2)..].first_chunk().map_or(0, |bytes| u128::from_le_bytes(*bytes));
    // In two steps, since a shift by 64 does not exist.
    (low >> (from % 8)) as u64 & !(u64::MAX << (count / 2) << (count - count / 2))
}

/// The rows of an image.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Streams<'a> {
    data: &'a [u8],
    rows: usize,
}

impl<'a> Streams<'a> {
    /// Those of an image with so many of them, given the content of the segment and the data after it.
    pub fn new(content: &[u8], data: &'a [u8], rows: usize) -> Result<Self, Error> {
        if content != SIGNATURE {
            return Err(Error::Unsupported("this extension of JPEG, or its version,"));
        }
        let streams = Streams { data, rows };
        // An image that was cut is an error wherever its region is.
        if streams.start(rows)?.saturating_add(SLACK) > data.len() {
            return Err(Error::Truncated);
        }
        Ok(streams)
    }

    /// A row, which has so many blocks.
    pub fn row(&self, row: usize, blocks: usize) -> Result<Row<'a>, Error> {
        Row::new(self.data, self.start(row)?, blocks)
    }

    /// Where a row begins.
    fn start(&self, row: usize) -> Result<usize, Error> {
        let start = number(self.data, 4 * row).ok_or(Error::Truncated)?;
        Ok(4 * (self.rows + 1) + start as usize)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::level::Level;

    /// Numbers of every size that streams tell apart, and mostly zeros at the end.
    fn block() -> impl Strategy<Value = [i16; 64]> {
        let value = prop_oneof![
            4 => Just(0),
            4 => -1..=1i16,
            4 => -18..=18i16,
            2 => -300..=300i16,
            1 => any::<i16>(),
        ];
        let values = prop::collection::vec(value, 64);
        (values, 0..=64usize, any::<bool>()).prop_map(|(values, end, narrow)| {
            std::array::from_fn(|at| match values[at] {
                _ if at >= end => 0,
                value if narrow => value % 273,
                value => value,
            })
        })
    }

    proptest! {
        /// Read one by one, and with others left out.
        #[test]
        fn blocks_are_read_as_written(blocks in prop::collection::vec(block(), 1..40), skipped in 0usize..40) {
            let components = [0, 1, 1];
            let mut writer = Writer::new();
            blocks.iter().for_each(|block| writer.push(block));
            writer.end_row();
            let mut bytes = Vec::new();
            writer.finish(&mut bytes);
            let streams = Streams::new(&SIGNATURE, &bytes, 1).unwrap();
            let skipped = skipped.min(blocks.len()) / 3;
            for skipped in [0, skipped] {
                let mut row = streams.row(0, blocks.len()).unwrap();
                let (mut previous, mut expected) = ([0; 3], [0i16; 3]);
                row.skip(skipped, &components, &mut previous).unwrap();
                for (number, block) in blocks.iter().enumerate() {
                    let component = usize::from(components[number % 3]);
                    expected[component] = expected[component].wrapping_add(block[0]);
                    if number < 3 * skipped {
                        continue;
                    }
                    let coded = row.next(&mut previous[component]).unwrap();
                    prop_assert_eq!(previous[component], expected[component]);
                    let mut found = [0; 64];
                    coded.values(|place, value| found[place] = value);
                    found[0] = block[0];
                    prop_assert_eq!(&found, block);
                }
            }
        }

        #[test]
        fn levels_agree(blocks in prop::collection::vec(block(), 1..10), factors in prop::array::uniform32(any::<i16>())) {
            let factors = std::array::from_fn(|at| factors[at % 32].wrapping_add(at as i16));
            let mut writer = Writer::new();
            blocks.iter().for_each(|block| writer.push(block));
            writer.end_row();
            let mut bytes = Vec::new();
            writer.finish(&mut bytes);
            let all = |level: Level| {
                let mut row = Streams::new(&SIGNATURE, &bytes, 1).unwrap().row(0, blocks.len()).unwrap();
                let put = |_: &[i16; 64]| {
                    let mut into = [0; 64];
                    read::put(level, &row.next(&mut 0).unwrap(), &factors, &mut into);
                    // The first one is set after the others.
                    into[0] = 0;
                    into
                };
                blocks.iter().map(put).collect::<Vec<_>>()
            };
            let expected = all(Level::Plain);
            for level in Level::all() {
                prop_assert_eq!(&all(level), &expected, "{:?}", level);
            }
        }
    }

    /// Numbers that lead out of the data.
    #[test]
    fn damage_is_found() {
        let mut writer = Writer::new();
        writer.push(&[5; 64]);
        writer.end_row();
        let mut bytes = Vec::new();
        writer.finish(&mut bytes);
        let read = |bytes: &[u8]| {
            let mut row = Streams::new(&SIGNATURE, bytes, 1)?.row(0, 1)?;
            row.next(&mut 0).map(|_| ())
        };
        assert_eq!(read(&bytes), Ok(()));
        // The row's start, and the lengths of its streams.
        for (place, expected) in [(0, DAMAGED), (4, Error::Truncated), (8, DAMAGED), (12, DAMAGED), (16, DAMAGED)] {
            let mut damaged = bytes.clone();
            damaged[place + 2] = 0x7F;
            assert_eq!(read(&damaged), Err(expected), "{place}");
        }
        assert_eq!(read(&bytes[..bytes.len() - 1]), Err(Error::Truncated));
        assert_eq!(read(&[]), Err(Error::Truncated));
        let other = Streams::new(b"enmasse\x02", &bytes, 1).map(|_| ());
        assert_eq!(other, Err(Error::Unsupported("this extension of JPEG, or its version,")));
    }
}
