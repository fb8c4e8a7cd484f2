//! The formats of images that are read, told by a file's first bytes.

/// A format of image files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// JPEG (JFIF, EXIF).
    Jpeg,
    /// PNG.
    Png,
    /// WebP.
    WebP,
    /// Windows bitmap.
    Bmp,
    /// GIF.
    Gif,
}

impl Format {
    /// The format of a file; `None` if it is not one of these.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [0xFF, 0xD8, ..] => Some(Format::Jpeg),
            [0x89, b'P', b'N', b'G', ..] => Some(Format::Png),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some(Format::WebP),
            [b'B', b'M', ..] => Some(Format::Bmp),
            [b'G', b'I', b'F', b'8', ..] => Some(Format::Gif),
            _ => None,
        }
    }

    /// The name for people.
    pub fn name(self) -> &'static str {
        match self {
            Format::Jpeg => "JPEG",
            Format::Png => "PNG",
            Format::WebP => "WebP",
            Format::Bmp => "BMP",
            Format::Gif => "GIF",
        }
    }

    /// The format that an extension promises, in any case.
    pub fn of_extension(extension: &str) -> Option<Self> {
        match extension.to_ascii_lowercase().as_str() {
            "jpg" | "jpeg" => Some(Format::Jpeg),
            "png" => Some(Format::Png),
            "webp" => Some(Format::WebP),
            "bmp" => Some(Format::Bmp),
            "gif" => Some(Format::Gif),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scan::EXTENSIONS;

    #[test]
    fn by_content_and_by_name() {
        let check = |bytes: &[u8], extension: &str, expected: Option<Format>| {
            assert_eq!((Format::of(bytes), Format::of_extension(extension)), (expected, expected), "{extension}");
        };
        check(&[0xFF, 0xD8, 0xFF], "JPG", Some(Format::Jpeg));
        check(b"\x89PNG\r\n", "png", Some(Format::Png));
        check(b"RIFF\0\0\0\0WEBPVP8 ", "webp", Some(Format::WebP));
        check(b"BM", "Bmp", Some(Format::Bmp));
        check(b"GIF89a", "gif", Some(Format::Gif));
        check(b"RIFF\0\0\0\0WAVE", "wav", None);
        check(b"", "", None);
        assert!(EXTENSIONS.iter().all(|extension| Format::of_extension(extension).is_some()));
    }
}
