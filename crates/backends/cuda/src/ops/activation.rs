//! Activations: ReLUs, and functions of `kernels/function.cu`.

use enmasse_graph::Activation;
use enmasse_graph::ops::ActivationBackward;

use super::conv2d::takes_relu;
use super::function::{Code, map, map_backward};
use super::{Lowered, Lowering, OnCuda, Operands, computed};
use crate::kernels::elementwise;

impl OnCuda for Activation {
    /// Nothing, if it came with the convolution before.
    fn lower(&self, o: &Operands, lowering: &mut Lowering) -> Lowered {
        if takes_relu(o, &lowering.gpu.engines)? {
            return Ok(Vec::new());
        }
        let dtype = o.activations();
        let x = o.input(0);
        let y = o.output(0);
        Ok(computed([match code(*self) {
            Some(code) => map(dtype, code, x, y),
            None => elementwise::activate(dtype, *self, x, y),
        }]))
    }
}

impl OnCuda for ActivationBackward {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        let dtype = o.activations();
        let dy = o.input(0);
        let known = o.input(1);
        let dx = o.output(0);
        Ok(computed([match code(self.0) {
            Some(code) => map_backward(dtype, code, dy, known, dx),
            None => elementwise::activate_backward(dtype, self.0, dy, known, dx),
        }]))
    }
}

/// The function that an activation is, if it is no ReLU.
fn code(activation: Activation) -> Option<Code> {
    match activation {
        Activation::Relu | Activation::Relu6 => None,
        Activation::Silu => Some(Code::plain(6)),
        Activation::HardSwish => Some(Code::plain(8)),
    }
}

#[cfg(test)]
mod tests {
    use enmasse_graph::ops::Operation;
    use enmasse_reference::ops::activation as reference;
    use enmasse_tensor::{Bf16, F16};

    use super::*;
    use crate::test_support::{Element, check_one, check_two, noise, wide};

    fn check<E: Element>() {
        for (activation, n) in
            [Activation::Silu, Activation::HardSwish].into_iter().flat_map(|a| [(a, 1), (a, 300_001)])
        {
            let code = code(activation).unwrap();
            let name = activation.name();
            let (x, dy) = (noise::<E>(1, n, 6.0), noise::<E>(2, n, 2.0));
            let expected = reference::activate(&wide(&x), activation);
            check_one(name, &x, &expected, 1e-6, |x, y| map(E::DTYPE, code, x, y));
            let expected = reference::activate_backward(&wide(&dy), &wide(&x), activation);
            check_two(name, [&dy, &x], &expected, 1e-6, |dy, x, dx| map_backward(E::DTYPE, code, dy, x, dx));
        }
    }

    #[test]
    fn smooth_activations_and_their_derivatives() {
        check::<f32>();
        check::<Bf16>();
        check::<F16>();
    }
}
