//! The paths and labels of many images in little memory.

/// Paths, each with a label. All paths lie in one string, so an image takes its path and 12 bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct FileList {
    text: String,
    /// The end of each path in `text`.
    ends: Vec<usize>,
    labels: Vec<u32>,
}

impl FileList {
    pub fn push(&mut self, path: &str, label: u32) {
        self.text.push_str(path);
        self.ends.push(self.text.len());
        self.labels.push(label);
    }

    /// Gives back the memory that the list has grown into and does not need.
    pub fn shrink(mut self) -> Self {
        self.text.shrink_to_fit();
        self.ends.shrink_to_fit();
        self.labels.shrink_to_fit();
        self
    }

    pub fn len(&self) -> usize {
        self.labels.len()
    }

    pub fn path(&self, index: usize) -> &str {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.text[start..self.ends[index]]
    }

    pub fn label(&self, index: usize) -> u32 {
        self.labels[index]
    }

    pub fn labels(&self) -> &[u32] {
        &self.labels
    }

    pub fn paths(&self) -> impl ExactSizeIterator<Item = &str> {
        (0..self.len()).map(|index| self.path(index))
    }

    /// The same paths with the label `labels[l]` in place of each label l.
    pub fn relabelled(mut self, labels: &[u32]) -> Self {
        self.labels.iter_mut().for_each(|label| *label = labels[*label as usize]);
        self
    }

    /// The entries for which `keep` returns true, in the same order.
    pub fn part(&self, keep: impl Fn(usize) -> bool) -> Self {
        let mut part = FileList::default();
        for index in (0..self.len()).filter(|&index| keep(index)) {
            part.push(self.path(index), self.label(index));
        }
        part.shrink()
    }
}
