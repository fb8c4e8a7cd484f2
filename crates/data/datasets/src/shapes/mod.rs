//! `shapes`: a small data set that needs no download. Ten figures, 300 JPEG images of each, drawn by this program.
//!
//! The figures vary in place, size, turn, colour and shading, on cluttered and noisy backgrounds, light on dark and
//! dark on light. A linear classifier of the pixels therefore fails (a test proves it), while a convolutional network
//! learns them in minutes. The images are the same bytes on every machine.
//!
//! ```no_run
//! let folder = enmasse_datasets::shapes::ensure(&enmasse_datasets::shapes::default_cache()?)?;
//! let split = enmasse_datasets::Split::open(&folder, 0, 0.2)?;
//! # Ok::<(), enmasse_data::DataError>(())
//! ```

mod figure;
mod publish;
mod scene;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::Builder;

use enmasse_data::DataError;
use jpeg_encoder::{ColorType, Encoder, SamplingFactor};

use figure::Figure;

/// Images of each class.
pub const PER_CLASS: usize = 300;

/// Number of classes.
pub const CLASSES: usize = Figure::ALL.len();

/// The folder's name; it changes whenever the content does.
const FOLDER: &str = "shapes-1";

/// The folder for data sets: `$ENMASSE_CACHE`, else `$XDG_CACHE_HOME/enmasse`, else `~/.cache/enmasse`.
///
/// # Errors
/// None of the variables is set, and there is no home folder.
pub fn default_cache() -> Result<PathBuf, DataError> {
    enmasse_system::files::cache_folder()
        .ok_or_else(|| DataError::Setting("no cache folder: set ENMASSE_CACHE to a writable folder".into()))
}

/// The data set's folder in `cache`, created if necessary (in a second or two). Several processes may call this at
/// once. An interrupted process leaves nothing that looks like a data set, and the next one cleans up after it.
///
/// # Errors
/// The folder cannot be written.
pub fn ensure(cache: &Path) -> Result<PathBuf, DataError> {
    publish::ensure(cache, FOLDER, is_whole, build)
}

/// Whether every image exists. A user may have deleted a part of the cache.
fn is_whole(folder: &Path) -> bool {
    let not_empty = |path: PathBuf| path.metadata().is_ok_and(|metadata| metadata.len() > 0);
    (0..CLASSES * PER_CLASS).all(|index| not_empty(folder.join(file(index))))
}

/// The relative path of image `index` among all images.
fn file(index: usize) -> String {
    let class = Figure::ALL[index / PER_CLASS].name();
    format!("{class}/{class}-{:03}.jpg", index % PER_CLASS)
}

/// Draws all images into `folder`, on all cores.
fn build(folder: &Path) -> Result<(), DataError> {
    for figure in Figure::ALL {
        let path = folder.join(figure.name());
        std::fs::create_dir_all(&path).map_err(|source| DataError::write(path, source))?;
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(16);
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(None));
    let draw = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= CLASSES * PER_CLASS {
                return;
            }
            let path = folder.join(file(index));
            if let Err(source) = std::fs::write(&path, image(index)) {
                failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(DataError::write(path, source));
                next.store(CLASSES * PER_CLASS, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        // As many helpers as can be started: without any, this thread draws all images.
        let helpers = (1..threads).map_while(|_| Builder::new().spawn_scoped(scope, draw).ok());
        helpers.for_each(drop);
        draw();
    });
    failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).map_or(Ok(()), Err)
}

/// The JPEG file of image `index` among all images.
fn image(index: usize) -> Vec<u8> {
    let class = index / PER_CLASS;
    let number = index % PER_CLASS;
    let (pixels, width, height) = scene::draw(Figure::ALL[class], number as u64);
    let mut bytes = Vec::new();
    let mut encoder = Encoder::new(&mut bytes, 75 + (number * 7 % 21) as u8);
    encoder.set_sampling_factor(if number.is_multiple_of(2) { SamplingFactor::F_2_2 } else { SamplingFactor::F_1_1 });
    let encoded = encoder.encode(&pixels, width as u16, height as u16, ColorType::Rgb);
    // The dimensions fit, and writing to memory cannot fail.
    debug_assert!(encoded.is_ok(), "{encoded:?}");
    bytes
}
