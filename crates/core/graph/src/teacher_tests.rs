//! A teacher in a plan: what it computes, that nothing of it is trained, and its share of the loss.

use crate::{
    Arena, Averaging, CompileOptions, Conv, Op, PerSample, Phase, Plan, Plans, Role, Teacher, Tensor, compile, losses,
};

fn net(x: Tensor) -> Tensor {
    x.conv2d("conv", Conv::new(8, 3).no_bias()).batch_norm("bn").relu().flatten().linear("fc", 10)
}

fn teacher() -> Teacher {
    let loss = PerSample::new(|logits, teacher| losses::distillation(logits, teacher, 4.0));
    Teacher { mean: vec![0.5; 3], std: vec![0.25; 3], ..Teacher::new("wide", 10, net, loss) }
}

fn plans(teacher: Option<Teacher>) -> Plans {
    let average = Some(Averaging::Ema(0.5));
    compile(&net, &CompileOptions { teacher, average, ..CompileOptions::new("net", 2, 8, 10) }).unwrap()
}

fn train(plans: &Plans) -> &Plan {
    plans.train.as_ref().unwrap()
}

#[test]
fn a_teacher_is_what_evaluation_computes() {
    let with = plans(Some(teacher()));
    let text = |node: &crate::Node| format!("{} {}", node.op, node.layer);
    let of_teacher = train(&with).instructions.iter().filter(|node| node.layer.starts_with("teacher."));
    let own = with.evaluate.phase(Phase::Forward).iter().map(text).skip(1);
    assert!(of_teacher.clone().skip(1).map(|node| text(node).replace("teacher.", "")).eq(own), "{}", train(&with));
    let first = of_teacher.map(|node| node.op.to_string()).next().unwrap();
    assert!(first.contains("mean [0.5,"), "{first}");
    assert!(train(&with).instructions[0].layer == "teacher.input", "it is computed first");
    assert!(!with.evaluate.to_string().contains("teacher"), "{}", with.evaluate);
}

#[test]
fn nothing_of_a_teacher_is_trained() {
    let [with, without] = [Some(teacher()), None].map(plans);
    assert_eq!(train(&with).trainable, train(&without).trainable);
    let is_teachers = |name: &str| name.contains("teacher.");
    let (taught, own): (Vec<_>, Vec<_>) = with.state.iter().cloned().partition(|tensor| is_teachers(&tensor.name));
    assert_eq!(own, without.state);
    assert!(taught.iter().all(|tensor| tensor.slot.arena == Arena::Teacher && tensor.name.starts_with("teacher.")));
    assert_eq!(taught.len(), 7);
    for node in &train(&with).instructions {
        let written = node.op.changes(node.inputs.len()).map(|index| node.inputs[index]).chain(node.outputs.clone());
        assert!(written.into_iter().all(|id| !matches!(train(&with).value(id).role, Role::Teacher { .. })));
        if node.phase == Phase::Backward {
            let read = |id: &crate::ValueId| is_teachers(&train(&with).value(*id).name);
            assert!(node.inputs.iter().filter(|id| read(id)).count() == 0 || node.layer == "distillation", "{node:?}");
        }
    }
    let updates = |plans: &Plans| -> Vec<String> {
        let nodes = train(plans).instructions.iter().filter(|node| node.phase > Phase::Backward);
        nodes.map(|node| node.op.to_string()).collect()
    };
    assert_eq!(updates(&with), updates(&without));
}

#[test]
fn the_loss_has_shares_of_both() {
    let plan = plans(Some(Teacher { alpha: 0.25, ..teacher() })).train.unwrap();
    let shares = plan.phase(Phase::Loss).iter().filter(|node| node.layer == "distillation");
    let shares: Vec<String> =
        shares.filter(|node| node.op.name() == "affine").map(|node| node.op.to_string()).collect();
    let affine = |scale: &str| format!("affine {{scale {scale} shift 0}}");
    assert_eq!(
        shares,
        ["0.25", "0.25", "16", "0.75", "0.25"].map(affine),
        "two temperatures, their square, two shares"
    );
    assert!(!plan.instructions.iter().any(|node| matches!(node.op, Op::CrossEntropy(_))));
}

#[test]
fn a_teacher_of_other_outputs_is_refused() {
    let wide = Teacher::new("wide", 12, |x: Tensor| x.flatten().linear("fc", 12), teacher().loss);
    let options = CompileOptions { teacher: Some(wide), ..CompileOptions::new("net", 2, 8, 10) };
    let found = compile(&net, &options).unwrap_err().to_string();
    assert!(found.contains("the loss of distillation") && found.contains("[2,12]"), "{found}");
}
