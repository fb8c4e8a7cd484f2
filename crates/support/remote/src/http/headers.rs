//! Numbers in the heads of answers.

use ureq::http::HeaderMap;
use ureq::http::header::{CONTENT_RANGE, HeaderName};

/// The number in a header.
pub fn number(headers: &HeaderMap, name: HeaderName) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.trim().parse().ok()
}

/// The first byte of a part and the length of the whole, if that is told: `bytes 7-9/10` or `bytes 7-9/*`.
pub fn range(headers: &HeaderMap) -> Option<(u64, Option<u64>)> {
    let (part, total) = headers.get(CONTENT_RANGE)?.to_str().ok()?.trim().strip_prefix("bytes ")?.split_once('/')?;
    let begin = part.split_once('-')?.0.parse().ok()?;
    Some((begin, if total == "*" { None } else { Some(total.parse().ok()?) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_files() {
        let check = |text: &str, expected: Option<(u64, Option<u64>)>| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_RANGE, text.parse().unwrap());
            assert_eq!(range(&headers), expected, "{text}");
        };
        check("bytes 7-9/10", Some((7, Some(10))));
        check("bytes 7-9/*", Some((7, None)));
        check("bytes */10", None);
        check("bytes 7-9", None);
        check("bytes 99999999999999999999-1/2", None);
        check("items 7-9/10", None);
        check("", None);
    }
}
