//! Rectangles of pixels.

/// A rectangle of pixels inside an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CropBox {
    /// Columns to its left.
    pub left: usize,
    /// Rows above it.
    pub top: usize,
    /// Number of columns.
    pub width: usize,
    /// Number of rows.
    pub height: usize,
}

impl CropBox {
    /// The whole of an image.
    pub fn whole(width: usize, height: usize) -> Self {
        CropBox { left: 0, top: 0, width, height }
    }

    /// Whether it has pixels and lies inside an image of `width` × `height`.
    pub fn fits(&self, width: usize, height: usize) -> bool {
        let inside =
            |start: usize, length: usize, whole: usize| length > 0 && length <= whole && start <= whole - length;
        inside(self.left, self.width, width) && inside(self.top, self.height, height)
    }
}
