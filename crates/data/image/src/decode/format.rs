//! The formats of images that are read, told by a file's first bytes.

/// A format of image files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ImageFormat {
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

impl ImageFormat {
    /// Extensions of image files, in any case. The content decides which format a file has.
    pub const EXTENSIONS: [&str; 6] = ["jpg", "jpeg", "png", "webp", "bmp", "gif"];

    /// The format of a file; `None` if it is not one of these.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [0xFF, 0xD8, ..] => Some(ImageFormat::Jpeg),
            [0x89, b'P', b'N', b'G', ..] => Some(ImageFormat::Png),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some(ImageFormat::WebP),
            [b'B', b'M', ..] => Some(ImageFormat::Bmp),
            [b'G', b'I', b'F', b'8', ..] => Some(ImageFormat::Gif),
            _ => None,
        }
    }

    /// The name for people.
    pub fn name(self) -> &'static str {
        match self {
            ImageFormat::Jpeg => "JPEG",
            ImageFormat::Png => "PNG",
            ImageFormat::WebP => "WebP",
            ImageFormat::Bmp => "BMP",
            ImageFormat::Gif => "GIF",
        }
    }

    /// The format that an extension promises, in any case.
    pub fn of_extension(extension: &str) -> Option<Self> {
        match extension.to_ascii_lowercase().as_str() {
            "jpg" | "jpeg" => Some(ImageFormat::Jpeg),
            "png" => Some(ImageFormat::Png),
            "webp" => Some(ImageFormat::WebP),
            "bmp" => Some(ImageFormat::Bmp),
            "gif" => Some(ImageFormat::Gif),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_content_and_by_name() {
        let check = |bytes: &[u8], extension: &str, expected: Option<ImageFormat>| {
            assert_eq!(
                (ImageFormat::of(bytes), ImageFormat::of_extension(extension)),
                (expected, expected),
                "{extension}"
            );
        };
        check(&[0xFF, 0xD8, 0xFF], "JPG", Some(ImageFormat::Jpeg));
        check(b"\x89PNG\r\n", "png", Some(ImageFormat::Png));
        check(b"RIFF\0\0\0\0WEBPVP8 ", "webp", Some(ImageFormat::WebP));
        check(b"BM", "Bmp", Some(ImageFormat::Bmp));
        check(b"GIF89a", "gif", Some(ImageFormat::Gif));
        check(b"RIFF\0\0\0\0WAVE", "wav", None);
        check(b"", "", None);
        assert!(ImageFormat::EXTENSIONS.iter().all(|extension| ImageFormat::of_extension(extension).is_some()));
    }
}
