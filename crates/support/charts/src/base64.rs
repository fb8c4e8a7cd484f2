//! Base64 with padding (RFC 4648, section 4), for images inside an SVG or a page.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The content of a file as an address (RFC 2397), for pages that hold their images themselves.
pub fn data_address(media_type: &str, bytes: &[u8]) -> String {
    format!("data:{media_type};base64,{}", encode(bytes))
}

/// `bytes` as base64.
pub(crate) fn encode(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let mut padded = [0; 4];
        padded[1..=group.len()].copy_from_slice(group);
        let bits = u32::from_be_bytes(padded);
        for place in 0..4 {
            // n bytes fill n + 1 characters; the rest of the four is padding.
            let character = ALPHABET[(bits >> (18 - 6 * place)) as usize & 63] as char;
            out.push(if place <= group.len() { character } else { '=' });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_test_vectors_of_rfc_4648() {
        let check = |bytes: &[u8], expected: &str| assert_eq!(super::encode(bytes), expected);
        check(b"", "");
        check(b"f", "Zg==");
        check(b"fo", "Zm8=");
        check(b"foo", "Zm9v");
        check(b"foob", "Zm9vYg==");
        check(b"fooba", "Zm9vYmE=");
        check(b"foobar", "Zm9vYmFy");
        check(&[0xfb, 0xff, 0xfe], "+//+");
    }
}
