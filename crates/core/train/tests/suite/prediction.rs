//! Images to predict, from files and from servers.

/// Of its answers, these tests need none.
#[allow(dead_code)]
#[path = "../../../../support/remote/tests/suite/server.rs"]
mod server;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use enmasse_data::{Dataset, DecodePool, Locality};
use enmasse_datasets::{DataKind, OpenOptions, PackForm, PackOptions, RemoteOptions, TaskKind, Unpacked, open, pack};
use enmasse_image::{CropBox, ImageRegion, ReadOptions, RegionRequest, decode};
use enmasse_train::Images;
use server::Server;

use crate::common::Colours;

/// Images on a server were fetched one after another, and a loader decoded all images as a whole.
#[test]
fn images_are_read_ahead_and_in_part_as_their_sources_are() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("packed");
    let parts = [6, 3].map(|count| Arc::new(Colours(count)) as Arc<dyn Dataset>);
    let classes = ["red", "green", "blue"].map(str::to_owned).to_vec();
    let unpacked = Unpacked {
        root: "colours".into(),
        kind: DataKind::Folder,
        task: TaskKind::Classification,
        classes,
        parts,
        test: None,
    };
    let options = PackOptions { form: PackForm::Raw { size: 8 }, most_skipped: 0 };
    pack(&unpacked, &options, &DecodePool::new(1).unwrap(), &path, |_| ()).unwrap();
    let server = Server::start(&[("packed", &fs::read(&path).unwrap())]);
    let remote = RemoteOptions { cache: Some(folder.path().join("cache")), ..RemoteOptions::default() };
    let options = OpenOptions { remote, ..OpenOptions::default() };
    let part = open(Path::new(&format!("{}/packed", server.address)), &options).unwrap().train;

    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/image/tests/fixtures/image.420.jpg");
    let mut images = Images::new(ReadOptions::default());
    images.add_file(file.clone());
    assert!(!images.is_remote());
    images.add_part(part.clone());
    assert!(images.is_remote() && images.extent(0).is_none());
    for index in 0..part.len() {
        let [own, expected] = [images.extent(index + 1), part.locality().unwrap().extent(index)].map(Option::unwrap);
        assert_eq!((own.object.address(), own.bytes), (expected.object.address(), expected.bytes));
    }

    let corner = |width: usize, height: usize| RegionRequest {
        part: CropBox { width: width / 3, height: height / 3, ..CropBox::whole(width, height) },
        shrink: 1,
    };
    let (mut own, mut expected) = (ImageRegion::default(), ImageRegion::default());
    for index in 0..images.len() {
        images.read_part(index, &RegionRequest::whole, &mut own).unwrap();
        assert_eq!(*own.image(), images.read(index).unwrap(), "{index}");
        images.read_part(index, &corner, &mut own).unwrap();
        match index {
            0 => decode::read_part(&file, ReadOptions::default(), &corner, &mut expected).unwrap(),
            _ => part.read_part(index - 1, &corner, &mut expected).unwrap(),
        }
        assert_eq!(own.image(), expected.image(), "{index}");
        assert!(own.image().height() < images.read(index).unwrap().height(), "{index}");
    }
}
