//! The files in a body: those of a form (`multipart/form-data`), or the body itself.

/// Characters of the line between the parts of a form, at most (RFC 2046).
const MAX_BOUNDARY: usize = 70;

/// A file that was sent.
#[derive(Debug, PartialEq, Eq)]
pub struct FormFile<'a> {
    /// Its name on the client's machine, where the client told it.
    pub name: Option<String>,
    pub content: &'a [u8],
}

/// The files in a body of this kind, in their order. None in a form that is malformed; parts that do not end are left out.
pub fn files<'a>(kind: &str, body: &'a [u8]) -> Vec<FormFile<'a>> {
    let Some(boundary) = kind.strip_prefix("multipart/form-data").and_then(|rest| rest.split_once("boundary=")) else {
        return vec![FormFile { name: None, content: body }];
    };
    let boundary = boundary.1.split(';').next().unwrap_or_default().trim().trim_matches('"');
    let line = format!("\r\n--{boundary}");
    let first = find(body, &line.as_bytes()[2..]).filter(|_| (1..=MAX_BOUNDARY).contains(&boundary.len()));
    let Some(first) = first else { return Vec::new() };
    let mut files = Vec::new();
    let mut rest = &body[first + line.len() - 2..];
    while let Some(end) = find(rest, line.as_bytes()) {
        if let Some(head) = find(&rest[..end], b"\r\n\r\n") {
            files.push(FormFile { name: name(&rest[..head]), content: &rest[head + 4..end] });
        }
        rest = &rest[end + line.len()..];
    }
    files
}

fn name(head: &[u8]) -> Option<String> {
    let head = String::from_utf8_lossy(head);
    let (_, rest) = head.split_once("filename=\"")?;
    rest.split('"').next().filter(|name| !name.is_empty()).map(str::to_owned)
}

fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_forms() {
        let check = |kind: &str, body: &str, expected: &[(Option<&str>, &str)]| {
            let found = files(kind, body.as_bytes());
            let expected = expected
                .iter()
                .map(|(name, content)| FormFile { name: name.map(str::to_owned), content: content.as_bytes() });
            assert_eq!(found, expected.collect::<Vec<_>>(), "{kind} {body:?}");
        };
        let form = "multipart/form-data; boundary=b";
        let part = "--b\r\nContent-Disposition: form-data; name=\"x\"; filename=\"a b.png\"\r\nContent-Type: image/png\r\n\r\n";
        let one = format!("{part}data\r\n--b--\r\n");
        check("image/png", "data", &[(None, "data")]);
        check("", "", &[(None, "")]);
        check(form, &one, &[(Some("a b.png"), "data")]);
        check("multipart/form-data; boundary=\"b\"; charset=utf-8", &one, &[(Some("a b.png"), "data")]);
        check(form, &format!("preamble\r\n{one}"), &[(Some("a b.png"), "data")]);
        check(
            form,
            &format!("{part}one\r\n{part}t\r\n\r\nwo\r\n--b--"),
            &[(Some("a b.png"), "one"), (Some("a b.png"), "t\r\n\r\nwo")],
        );
        check(form, "--b\r\n\r\n\r\n--b--", &[(None, "")]);
        check(form, "--b\r\nfilename=\"\"\r\n\r\nx\r\n--b--", &[(None, "x")]);
        for malformed in ["", "--b", "--b--", "--b\r\n\r\nno end", "--c\r\n\r\nx\r\n--c--", "\r\n\r\n"] {
            check(form, malformed, &[]);
        }
        check("multipart/form-data; boundary=", "--\r\n\r\nx\r\n--", &[]);
        check("multipart/form-data", "x", &[(None, "x")]);
        let long = "b".repeat(71);
        check(&format!("multipart/form-data; boundary={long}"), &format!("--{long}\r\n\r\nx\r\n--{long}--"), &[]);
    }
}
