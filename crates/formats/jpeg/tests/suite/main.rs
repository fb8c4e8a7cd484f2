//! Tests of the decoder through its interface.

mod hostile;
mod images;
mod pillow;
mod regions;

use enmasse_jpeg::{Decoder, Error, Jpeg, Region, Scale};

/// The whole image at a scale: width, height and pixels.
fn whole(decoder: &mut Decoder, bytes: &[u8], scale: Scale) -> Result<(usize, usize, Vec<u8>), Error> {
    let jpeg = Jpeg::parse(bytes)?;
    let (width, height) = jpeg.scaled(scale);
    let mut pixels = vec![0; width * height * 3];
    decoder.decode(&jpeg, Region { left: 0, top: 0, width, height }, scale, &mut pixels)?;
    Ok((width, height, pixels))
}
