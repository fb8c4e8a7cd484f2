//! A record of a packed file: an image, its name, and a hash that also covers its place and label, without IO.

use super::header::Hash;

/// Bytes before the image: hash, length of the image, length of the name.
pub(super) const HEAD: usize = 40;
/// Records begin at multiples of it.
const ALIGNMENT: usize = 8;
/// Bytes of the hash, which the rest of the record follows.
const HASHED_FROM: usize = 32;

/// The place of a record in the data set. A record at another place is damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordLocation {
    /// 0 for training, 1 for validation, 2 for test.
    pub part: usize,
    pub index: usize,
    pub label: usize,
}

/// The image and the name of a record.
pub(super) type Content<'a> = (&'a [u8], &'a [u8]);

/// Makes `record` the bytes of a record.
pub(super) fn write(place: RecordLocation, image: &[u8], name: &str, record: &mut Vec<u8>) {
    record.clear();
    record.resize(HASHED_FROM, 0);
    for length in [image.len(), name.len()] {
        record.extend((length as u32).to_le_bytes());
    }
    record.extend_from_slice(image);
    record.extend_from_slice(name.as_bytes());
    let hash = hash(place, record);
    record[..HASHED_FROM].copy_from_slice(&hash);
    record.resize(record.len().next_multiple_of(ALIGNMENT), 0);
}

/// Splits a record. `None` if its lengths do not fit.
pub(super) fn content(record: &[u8]) -> Option<Content<'_>> {
    let (image, name) = lengths(record)?;
    let rest = &record[HEAD..];
    let end = image.checked_add(name).filter(|&end| end <= rest.len())?;
    Some((&rest[..image], &rest[image..end]))
}

/// The lengths of image and name from the head of a record.
pub(super) fn lengths(head: &[u8]) -> Option<(usize, usize)> {
    let length = |at: usize| Some(u32::from_le_bytes(head.get(at..at + 4)?.try_into().ok()?) as usize);
    Some((length(HASHED_FROM)?, length(HASHED_FROM + 4)?))
}

/// Whether a record is as it was written, and at its place.
pub(super) fn is_whole(place: RecordLocation, record: &[u8]) -> bool {
    content(record).is_some_and(|(image, name)| {
        let end = HEAD + image.len() + name.len();
        let own: Option<&Hash> = record.first_chunk();
        own == Some(&hash(place, &record[..end]))
    })
}

/// The hash of part, index and label, as eight bytes each, and of the record after its hash.
fn hash(RecordLocation { part, index, label }: RecordLocation, record: &[u8]) -> Hash {
    let mut hasher = blake3::Hasher::new();
    for number in [part, index, label] {
        hasher.update(&(number as u64).to_le_bytes());
    }
    *hasher.update(&record[HASHED_FROM..]).finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: RecordLocation = RecordLocation { part: 1, index: 7, label: 3 };

    fn record(image: &[u8], name: &str) -> Vec<u8> {
        let mut record = vec![9; 100];
        write(PLACE, image, name, &mut record);
        record
    }

    #[test]
    fn records_are_read_as_they_were_written() {
        for (image, name, length) in
            [(&b""[..], "", 40), (b"p", "", 48), (b"content", "n", 48), (b"content", "ü", 56), (b"", "a\n\"b\"", 48)]
        {
            let record = record(image, name);
            assert_eq!(record.len(), length);
            assert_eq!(content(&record), Some((image, name.as_bytes())));
            assert!(is_whole(PLACE, &record));
        }
    }

    #[test]
    fn every_byte_and_the_place_count() {
        let whole = record(b"content", "name");
        let end = HEAD + 11;
        for place in 0..end {
            let mut damaged = whole.clone();
            damaged[place] ^= 0x10;
            assert!(!is_whole(PLACE, &damaged), "byte {place}");
        }
        for end in 0..end {
            assert!(!is_whole(PLACE, &whole[..end]), "{end} bytes");
        }
        for place in [
            RecordLocation { part: 0, ..PLACE },
            RecordLocation { index: 6, ..PLACE },
            RecordLocation { label: 4, ..PLACE },
        ] {
            assert!(!is_whole(place, &whole), "{place:?}");
        }
        // The bytes up to the next record have no meaning.
        assert!(is_whole(PLACE, &whole[..end]));
        let largest = [[0xFF; HEAD], [0; HEAD]].concat();
        assert_eq!(content(&largest), None);
        assert!(!is_whole(PLACE, &largest));
    }
}
