//! The state of a program on its way into a file: tensors in PyTorch's order, of which a few MiB are in memory at a time.

use std::cell::RefCell;
use std::io;
use std::sync::{Mutex, PoisonError};

use enmasse_comm::Group;
use enmasse_device::Program;
use enmasse_graph::{AVERAGE_PREFIX, Arena, StateTensor};
use enmasse_weights::{Pieces, Tensors};

use crate::parts::{Part, StateOfRanks};
use crate::weights::torch_shape;

/// Bytes that are converted to PyTorch's order at a time, unless a single row takes more.
pub(crate) const PIECE: usize = 4 << 20;

/// State tensors of a program.
pub(crate) struct StateTensors<'a> {
    program: RefCell<&'a mut dyn Program>,
    tensors: Vec<Chosen>,
    /// What ranks have different parts of.
    of_ranks: Option<StateOfRanks<'a>>,
}

struct Chosen {
    own: StateTensor,
    /// Its name in the file.
    name: String,
    shape: Vec<usize>,
    /// Its index among the parts of ranks, if another rank has it.
    elsewhere: Option<usize>,
}

impl<'a> StateTensors<'a> {
    /// All of them but a teacher's, in the order of [`enmasse_graph::Plans::state`]; also those that other ranks of the group have. These
    /// call [`crate::parts::send_state`].
    pub fn all(program: &'a mut dyn Program, group: Option<&'a Group>) -> Self {
        let of_ranks = StateOfRanks::begin(program, group);
        let is_saved = |own: &StateTensor| !matches!(own.slot.arena, Arena::Teacher | Arena::Residuals);
        let mut all = Self::chosen(program, &|own| is_saved(own).then(|| own.name.clone()));
        if let Some(of_ranks) = &of_ranks {
            all.tensors.retain(|tensor| of_ranks.parts.iter().all(|part| part.tensor.name != tensor.own.name));
            let averages = all.tensors.partition_point(|tensor| tensor.own.slot.arena != Arena::Average);
            let chosen = |(index, part): (usize, &Part)| Chosen {
                own: part.tensor.clone(),
                name: part.saved_as.clone(),
                shape: torch_shape(&part.tensor),
                elsewhere: (part.owner > 0).then_some(index),
            };
            all.tensors.splice(averages..averages, of_ranks.parts.iter().enumerate().map(chosen));
        }
        StateTensors { of_ranks, ..all }
    }

    /// Parameters and running statistics; of a run that keeps averages, these, under the names of the tensors that they
    /// average.
    pub fn evaluated(program: &'a mut dyn Program) -> Self {
        let averaged = program.plans().state.iter().any(|own| own.slot.arena == Arena::Average);
        Self::chosen(program, &|own| match own.slot.arena {
            Arena::Average => Some(own.name.strip_prefix(AVERAGE_PREFIX).unwrap_or(&own.name).to_owned()),
            Arena::Parameters | Arena::Buffers => (!averaged).then(|| own.name.clone()),
            Arena::Optimizer(_) | Arena::LossScale | Arena::Residuals | Arena::Teacher => None,
            Arena::Input | Arena::Gradients | Arena::Activations | Arena::Cache => None,
        })
    }

    fn chosen(program: &'a mut dyn Program, name: &dyn Fn(&StateTensor) -> Option<String>) -> Self {
        let state = program.plans().state.iter();
        let tensors = state.filter_map(|own| {
            Some(Chosen { own: own.clone(), name: name(own)?, shape: torch_shape(own), elsewhere: None })
        });
        StateTensors { tensors: tensors.collect(), program: RefCell::new(program), of_ranks: None }
    }
}

impl Tensors for StateTensors<'_> {
    fn count(&self) -> usize {
        self.tensors.len()
    }

    fn name(&self, index: usize) -> &str {
        &self.tensors[index].name
    }

    fn shape(&self, index: usize) -> &[usize] {
        &self.tensors[index].shape
    }

    fn elements(&self, index: usize) -> usize {
        self.tensors[index].own.shape.elements()
    }

    fn for_pieces(&self, index: usize, to: &mut Pieces) -> io::Result<()> {
        let Chosen { own, elsewhere, .. } = &self.tensors[index];
        if let Some((of_ranks, part)) = self.of_ranks.as_ref().zip(*elsewhere) {
            let stored = of_ranks.read(part).map_err(io::Error::other)?;
            return in_torch_order(own, &stored, to);
        }
        // One thread calls, but a device may choose which.
        let ended = Mutex::new((to, Ok(())));
        let read = self.program.borrow_mut().read_state(&|tensor| tensor.name == own.name, &|_, tensor, stored| {
            let mut ended = ended.lock().unwrap_or_else(PoisonError::into_inner);
            ended.1 = in_torch_order(tensor, stored, ended.0);
        });
        read.map_err(io::Error::other)?;
        ended.into_inner().unwrap_or_else(PoisonError::into_inner).1
    }
}

/// Passes values in stored order to `to` in PyTorch's.
fn in_torch_order(tensor: &StateTensor, stored: &[f32], to: &mut Pieces) -> io::Result<()> {
    let (rows, row) = tensor.layout.rows(&tensor.shape);
    let at_once = (PIECE / 4 / row.max(1)).clamp(1, rows.max(1));
    let mut piece = vec![0.0; at_once * row];
    for first in (0..rows).step_by(at_once) {
        let last = rows.min(first + at_once);
        tensor.layout.for_each_run_of_rows(&tensor.shape, first..last, |run, torch, stride| {
            let start = torch - first * row;
            stored[run].iter().enumerate().for_each(|(j, &value)| piece[start + j * stride] = value);
        });
        to(&piece[..(last - first) * row])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use enmasse_graph::{FilterOrder, Init, Layout, Slot};
    use enmasse_tensor::{DType, Shape};

    use super::*;

    #[test]
    fn pieces_add_up_to_the_tensor() {
        let check = |layout: Layout, shape: &[usize], pieces: usize| {
            let slot = Slot { arena: Arena::Parameters, offset: 0 };
            let name = "w".to_owned();
            let shape = Shape::from(shape.to_vec());
            let init = Init::Constant(0.0);
            let tensor = StateTensor { name, shape, dtype: DType::F32, layout, slot, init };
            let stored: Vec<f32> = (0..tensor.shape.elements()).map(|index| index as f32).collect();
            let mut expected = stored.clone();
            layout.for_each(&tensor.shape, |from, to| expected[to] = stored[from]);
            let mut found = Vec::new();
            let mut count = 0;
            let mut take = |piece: &[f32]| {
                found.extend_from_slice(piece);
                count += 1;
                Ok(())
            };
            in_torch_order(&tensor, &stored, &mut take).unwrap();
            assert!(found == expected && count == pieces, "{layout:?} {:?}: {count} pieces", tensor.shape);
        };
        check(Layout::Plain, &[], 1);
        check(Layout::Plain, &[0], 0);
        check(Layout::Plain, &[7], 1);
        check(Layout::Plain, &[PIECE / 2 + 1], 3);
        check(Layout::Linear, &[1000, 2100], 3);
        // A row of more than a piece.
        check(Layout::Linear, &[PIECE / 4 + 1, 2], 2);
        check(Layout::Convolution(FilterOrder::Hwio), &[3, 3, 100, 1200], 2);
        check(Layout::Convolution(FilterOrder::Ohwi), &[1200, 3, 3, 100], 2);
    }
}
