//! The data sets that can be fetched: a table of archives, servers and checksums, and what people call them.

/// A data set that its authors let anybody download.
#[derive(Debug)]
pub struct KnownSet {
    /// The name on the command line, in lower case and without dashes.
    pub name: &'static str,
    /// The authors' name.
    pub title: &'static str,
    /// The folder that its files lie in: torchvision's, or the archive's own.
    pub folder: &'static str,
    /// Images in both parts together.
    pub images: usize,
    /// Folders on servers that hold all archives, in the order in which they are asked.
    pub mirrors: &'static [&'static str],
    /// The archives.
    pub archives: &'static [Archive],
}

/// A file on a server.
#[derive(Debug)]
pub struct Archive {
    /// Its name below a mirror.
    pub name: &'static str,
    /// Its length in bytes.
    pub bytes: u64,
    /// Its SHA-256 in hexadecimal digits.
    pub sha256: &'static str,
    /// What is in it.
    pub form: Form,
    /// The most bytes that it may have when it is decompressed. No more than that is written.
    pub unpacked: u64,
}

/// What an archive is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A compressed tar file, of whose entries those below the set's folder are taken.
    Tar,
    /// A single compressed file, with its path below the set's folder.
    File(&'static str),
}

const CIFAR: &[&str] = &["https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/"];

/// The archives as torchvision downloads them. Their lengths and SHA-256 are those that TensorFlow Datasets and Keras publish.
pub static SETS: &[KnownSet] = &[
    KnownSet {
        name: "cifar10",
        title: "CIFAR-10",
        folder: "cifar-10-batches-py",
        images: 60_000,
        mirrors: CIFAR,
        archives: &[Archive {
            name: "cifar-10-python.tar.gz",
            bytes: 170_498_071,
            sha256: "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
            form: Form::Tar,
            unpacked: 200_000_000,
        }],
    },
    KnownSet {
        name: "cifar100",
        title: "CIFAR-100",
        folder: "cifar-100-python",
        images: 60_000,
        mirrors: CIFAR,
        archives: &[Archive {
            name: "cifar-100-python.tar.gz",
            bytes: 169_001_437,
            sha256: "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
            form: Form::Tar,
            unpacked: 200_000_000,
        }],
    },
    KnownSet {
        name: "mnist",
        title: "MNIST",
        folder: "MNIST",
        images: 70_000,
        mirrors: &[
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ],
        archives: &[
            Archive {
                name: "train-images-idx3-ubyte.gz",
                bytes: 9_912_422,
                sha256: "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                form: Form::File("raw/train-images-idx3-ubyte"),
                unpacked: 47_040_016,
            },
            Archive {
                name: "train-labels-idx1-ubyte.gz",
                bytes: 28_881,
                sha256: "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                form: Form::File("raw/train-labels-idx1-ubyte"),
                unpacked: 60_008,
            },
            Archive {
                name: "t10k-images-idx3-ubyte.gz",
                bytes: 1_648_877,
                sha256: "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                form: Form::File("raw/t10k-images-idx3-ubyte"),
                unpacked: 7_840_016,
            },
            Archive {
                name: "t10k-labels-idx1-ubyte.gz",
                bytes: 4_542,
                sha256: "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
                form: Form::File("raw/t10k-labels-idx1-ubyte"),
                unpacked: 10_008,
            },
        ],
    },
    KnownSet {
        name: "fashion-mnist",
        title: "Fashion-MNIST",
        folder: "FashionMNIST",
        images: 70_000,
        mirrors: &[
            "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
            "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        ],
        archives: &[
            Archive {
                name: "train-images-idx3-ubyte.gz",
                bytes: 26_421_880,
                sha256: "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                form: Form::File("raw/train-images-idx3-ubyte"),
                unpacked: 47_040_016,
            },
            Archive {
                name: "train-labels-idx1-ubyte.gz",
                bytes: 29_515,
                sha256: "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                form: Form::File("raw/train-labels-idx1-ubyte"),
                unpacked: 60_008,
            },
            Archive {
                name: "t10k-images-idx3-ubyte.gz",
                bytes: 4_422_102,
                sha256: "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                form: Form::File("raw/t10k-images-idx3-ubyte"),
                unpacked: 7_840_016,
            },
            Archive {
                name: "t10k-labels-idx1-ubyte.gz",
                bytes: 5_148,
                sha256: "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
                form: Form::File("raw/t10k-labels-idx1-ubyte"),
                unpacked: 10_008,
            },
        ],
    },
    KnownSet {
        name: "flower-photos",
        title: "flower_photos",
        folder: "flower_photos",
        images: 3_670,
        mirrors: &[
            "https://storage.googleapis.com/download.tensorflow.org/example_images/",
            "http://download.tensorflow.org/example_images/",
        ],
        archives: &[Archive {
            name: "flower_photos.tgz",
            bytes: 228_813_984,
            sha256: "4c54ace7911aaffe13a365c34f650e71dd5bf1be0a58b464e5a7183e3e595d9c",
            form: Form::Tar,
            unpacked: 300_000_000,
        }],
    },
];

/// The set that somebody means by `name`: upper case, dashes and underscores do not matter.
pub fn find(name: &str) -> Option<&'static KnownSet> {
    let letters = |name: &str| name.replace(['-', '_', ' '], "").to_ascii_lowercase();
    SETS.iter().find(|set| letters(set.name) == letters(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_as_users_type_them() {
        let check = |name: &str, expected: Option<&str>| assert_eq!(find(name).map(|set| set.title), expected);
        check("cifar10", Some("CIFAR-10"));
        check("CIFAR-10", Some("CIFAR-10"));
        check("cifar_100", Some("CIFAR-100"));
        check("MNIST", Some("MNIST"));
        check("fashion-mnist", Some("Fashion-MNIST"));
        check("FashionMNIST", Some("Fashion-MNIST"));
        check("flower_photos", Some("flower_photos"));
        check("flower-photos", Some("flower_photos"));
        check("imagenet", None);
        check("", None);
    }

    #[test]
    fn the_table_is_sound() {
        for set in SETS {
            assert!(find(set.name).is_some_and(|found| std::ptr::eq(found, set)), "{} is found first", set.name);
            assert!(!set.mirrors.is_empty() && set.mirrors.iter().all(|mirror| mirror.ends_with('/')), "{}", set.name);
            assert!(set.mirrors[0].starts_with("https://"), "{}", set.name);
            for archive in set.archives {
                assert_eq!(archive.sha256.len(), 64);
                assert!(archive.sha256.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')));
                assert!((1..=archive.unpacked * 2).contains(&archive.bytes), "{}", archive.name);
            }
        }
    }
}
