//! Decoding takes memory by a picture's true size, whatever a file claims.

use std::alloc::{GlobalAlloc, Layout, System};
use std::borrow::Cow;
use std::cell::Cell;

use enmasse_data::{Picture, decode};
use png::{BitDepth, ColorType, Encoder, Info};

/// Counts the bytes that this thread holds, and their maximum.
struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    // An ending thread no longer has counters.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        PEAK.with(|peak| peak.set(peak.get().max(held.get())));
    });
}

// SAFETY: every call is forwarded to the system's allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The decoder's answer, and the greatest number of bytes that it held.
fn decoded(bytes: &[u8]) -> (Result<(), String>, usize) {
    let before = HELD.get();
    PEAK.set(before);
    let result = decode::decode(bytes, true, &mut Picture::default());
    (result, (PEAK.get() - before) as usize)
}

/// A PNG of 8x8 pixels whose header may claim more.
fn png(claimed: u32, icc_profile: Option<Cow<'static, [u8]>>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut info = Info::with_size(claimed, claimed);
    (info.color_type, info.bit_depth, info.icc_profile) = (ColorType::Rgb, BitDepth::Eight, icc_profile);
    let mut writer = Encoder::with_info(&mut bytes, info).unwrap().write_header().unwrap();
    let _ = writer.write_image_data(&[7; 8 * 8 * 3]);
    drop(writer);
    bytes
}

/// A JPEG of 16x16 pixels whose header claims more.
fn jpeg(claimed: u16) -> Vec<u8> {
    let mut bytes = Vec::new();
    let encoder = jpeg_encoder::Encoder::new(&mut bytes, 90);
    encoder.encode(&[7; 16 * 16 * 3], 16, 16, jpeg_encoder::ColorType::Rgb).unwrap();
    let frame = bytes.windows(2).position(|pair| pair == [0xFF, 0xC0]).unwrap();
    let [high, low] = claimed.to_be_bytes();
    bytes.splice(frame + 5..frame + 9, [high, low, high, low]);
    bytes
}

/// A JPEG header of 1 KB took 268 MB in each loader thread.
#[test]
fn a_short_file_cannot_claim_many_pixels() {
    let check = |bytes: Vec<u8>, claimed: usize| {
        let (result, peak) = decoded(&bytes);
        let expected = format!("truncated: {} bytes cannot hold {claimed}x{claimed} pixels", bytes.len());
        assert_eq!(result, Err(expected));
        assert!(peak < 1 << 20, "{peak} bytes");
    };
    check(jpeg(9216), 9216);
    check(png(9216, None), 9216);
}

/// A file of 2 MB took 709 MB.
#[test]
fn colour_profiles_are_not_decompressed() {
    let (result, peak) = decoded(&png(8, Some(vec![0; 32 << 20].into())));
    assert_eq!(result, Ok(()));
    assert!(peak < 4 << 20, "{peak} bytes");
}
