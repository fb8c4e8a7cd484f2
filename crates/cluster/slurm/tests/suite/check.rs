//! Mistakes in scripts: each is found on its line, and correct lines are left alone.

use enmasse_slurm::{Finding, MAX_SCRIPT_BYTES, check};
use proptest::prelude::*;

/// The expected findings: lines, and parts of the problem and of the correction.
type Expected<'a> = &'a [(usize, &'a str, &'a str)];

#[track_caller]
fn finds(script: &str, expected: Expected) {
    let found = check(script);
    let told = || found.iter().map(|finding| format!("{finding:#?}")).collect::<Vec<_>>().join("\n");
    assert_eq!(found.len(), expected.len(), "{script}\n{}", told());
    for (Finding { line, problem, mend }, (at, says, writes)) in found.iter().zip(expected) {
        assert_eq!(line, at, "{script}\n{}", told());
        assert!(problem.contains(says) && mend.contains(writes), "{says:?} or {writes:?} is missing:\n{}", told());
    }
}

/// As printed in a tutorial on several machines.
const TUTORIAL: &str = "#!/bin/bash
#SBATCH --job-name=MultiGPU
#SBATCH --partition=gpu
#SBATCH -n 32
#SBATCH --nodes=8 
#SBATCH --ntasks-per-node=4
#SBATCH --output= your_path.out
#SBATCH --error= your_path.err
#SBATCH --gres=gpu:4

python train.py
";

#[test]
fn the_tutorials_script() {
    finds(
        TUTORIAL,
        &[
            (6, "no --cpus-per-task", "#SBATCH --cpus-per-task=8"),
            (7, "a blank beside the = of --output; sbatch refuses", "#SBATCH --output=your_path.out"),
            (8, "a blank beside the = of --error", "#SBATCH --error=your_path.err"),
            (11, "no srun: one process starts although 32 tasks are requested", "srun python train.py"),
        ],
    );
    let mended = TUTORIAL.replace("= your", "=your").replace("-n 32", "--cpus-per-task=1");
    let started = mended.replace("python", "srun --kill-on-bad-exit=1 python");
    finds(&started, &[]);
}

/// The same inside the tutorial's text, next to the program.
#[test]
fn scripts_inside_markdown() {
    let program = "import os\nIP = os.environ['SLURM_STEP_NODELIST']\n\ndef init(host, port=23456):\n    pass\n";
    let text = format!(
        "# On `Slurm`\n\n```python\n{program}```\n\nRun python a.py by:\n\n```shell\n{TUTORIAL}```\nport 29500\n"
    );
    finds(
        &text,
        &[
            (5, "SLURM_STEP_NODELIST is a compressed list", "scontrol show hostnames"),
            (7, "port 23456 is the same in every job", "MASTER_PORT="),
            (19, "no --cpus-per-task", "--cpus-per-task=8"),
            (20, "a blank beside the = of --output", "--output=your_path.out"),
            (21, "a blank beside the = of --error", "--error=your_path.err"),
            (24, "no srun", "srun python train.py"),
        ],
    );
    let bare = "Text.\n```\n#SBATCH -c 1 -n 2\nhostname\n```\n";
    finds(bare, &[(3, "does not name an interpreter", "#!/bin/bash")]);
}

/// Directives of two nodes with two tasks each, then the body from line 5 on.
#[track_caller]
fn in_body(body: &str, expected: Expected) {
    finds(&format!("#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=2\n#SBATCH -c1\n{body}\n"), expected);
}

/// Directives from line 2 on, and one task started by srun.
#[track_caller]
fn in_head(head: &str, expected: Expected) {
    finds(&format!("#!/bin/bash\n{head}\n#SBATCH --cpus-per-task 1\nsrun -K python train.py\n"), expected);
}

#[test]
fn commands_without_srun() {
    let alone = |line, words: &'static str| [(line, "no srun: one process", words)];
    in_body("python train.py", &alone(5, "srun python train.py"));
    in_body(
        "module load x\nexport A=1 B=2\nA=1 exec /opt/bin/python3.11 -u train.py | tee log",
        &alone(7, "srun /opt/bin/python3.11 -u train.py"),
    );
    in_body("python setup.py\n\nif true; then enmasse train \\\n  data; fi", &alone(7, "srun enmasse train data"));
    in_body("python -m train", &alone(5, "srun python -m train"));
    in_body("./train --epochs 3", &alone(5, "srun ./train --epochs 3"));
    in_body(
        "torchrun --nproc-per-node 2 a.py",
        &[(5, "torchrun runs only on the first of 2 nodes", "srun --ntasks-per-node=1 torchrun")],
    );
    in_body(
        "python -m torch.distributed.launch a.py",
        &[(5, "runs only on the first of 2 nodes", "srun --ntasks-per-node=1 python")],
    );
    for fine in [
        "python -m venv x\npython -c 'print(1)'\npython --version\npip install a",
        "python prepare.py\nsrun -K python train.py",
        "mpirun python train.py",
        "for host in a b; do ssh $host python train.py & done; wait",
        "bash run.sh",
        "# python train.py",
        "cat <<EOF > x.py\npython train.py\nEOF",
        "srun -K bash -c 'python train.py'",
        "srun --kill-on-bad-exit=1 \\\n    python train.py",
        "SLURM_KILL_BAD_EXIT=1\nsrun python train.py",
        "srun --ntasks=1 python prepare.py",
    ] {
        in_body(fine, &[]);
    }
    in_head("#SBATCH --nodes=1", &[]);
    finds("#!/bin/bash\n#SBATCH -n1 -c 4\npython train.py", &[]);
    finds("#!/bin/bash\n#SBATCH -N1 -n4 -c4\ntorchrun --nproc-per-node 4 train.py", &[]);
    finds("#!/bin/bash\n#SBATCH --nodes=2-4 -c 1\npython a.py", &[]);
}

#[test]
fn options_of_srun() {
    in_body("srun python train.py", &[(5, "leaves the others waiting", "srun --kill-on-bad-exit=1")]);
    let launched = "torchrun is started 2 times on each node";
    in_body("srun -K torchrun --nproc-per-node 2 a.py", &[(5, launched, "--ntasks-per-node=1")]);
    in_body("srun -K --ntasks-per-node=1 torchrun --nproc-per-node 2 a.py", &[]);
    in_body("srun -K enmasse launch -n 2 -- a", &[(5, "enmasse launch is started 2 times", "--cpus-per-task")]);
    let head = "#!/bin/bash\n#SBATCH --cpus-per-task=4\n";
    let inherited = (3, "srun does not inherit --cpus-per-task", "srun --cpus-per-task=\"$SLURM_CPUS_PER_TASK\"");
    finds(&format!("{head}srun python a.py"), &[inherited]);
    finds(&format!("{head}srun -c4 python a.py"), &[]);
    finds(&format!("{head}srun --cpus-per-task=$SLURM_CPUS_PER_TASK python a.py"), &[]);
    finds(&format!("{head}export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK\nsrun python a.py"), &[]);
    finds("#!/bin/bash\nsrun -c 4 python a.py", &[]);
    finds("#!/bin/bash\nsrun python a.py", &[(1, "no --cpus-per-task", "#SBATCH --cpus-per-task")]);
}

/// As in PyTorch's own example for several nodes.
#[test]
fn torchrun_on_each_node() {
    let script = "#!/bin/bash
#SBATCH --ntasks=4
#SBATCH --nodes=4
#SBATCH --gpus-per-task=1
#SBATCH --cpus-per-task=4

nodes=( $( scontrol show hostnames $SLURM_JOB_NODELIST ) )
head_node=${nodes[0]}
head_node_ip=$(srun --nodes=1 --ntasks=1 -w \"$head_node\" hostname --ip-address)

srun torchrun \\
--nnodes 4 \\
--nproc_per_node 1 \\
--rdzv_endpoint $head_node_ip:29500 \\
train.py 50 10
";
    let inherited = (11, "srun does not inherit --cpus-per-task", "srun --cpus-per-task");
    let waits = (11, "leaves the others waiting", "srun --kill-on-bad-exit=1");
    finds(script, &[waits, inherited, (14, "port 29500 is the same in every job", "MASTER_PORT=")]);
}

#[test]
fn tasks_and_devices() {
    let product = |says| [(2, says, "leave --ntasks out")];
    in_head(
        "#SBATCH --ntasks=30 --nodes=8 --ntasks-per-node=4",
        &product("--ntasks=30, but --nodes=8 x --ntasks-per-node=4 is 32"),
    );
    in_head(
        "#SBATCH -n3 -N 2\n#SBATCH --ntasks-per-node 2",
        &product("--ntasks=3, but --nodes=2 x --ntasks-per-node=2 is 4"),
    );
    in_head("#SBATCH -n 4\n#SBATCH --nodes=2 --ntasks-per-node=2", &[]);
    in_head("#SBATCH --nodes=2-4 -n 4 --ntasks-per-node=2", &[]);
    // Without --nodes Slurm uses as many nodes as the tasks need.
    in_head("#SBATCH -n 4 --ntasks-per-node=2", &[]);
    in_head("#SBATCH -n 18446744073709551615 -N 18446744073709551615 --ntasks-per-node=18446744073709551615", &[]);
    let gpus = |says| [(2, says, "#SBATCH --ntasks-per-node=4")];
    in_head("#SBATCH --gres=gpu:4 --ntasks-per-node=2", &gpus("--gres=gpu:4: 4 GPUs of a node for 2 tasks"));
    in_head("#SBATCH --gpus-per-node=a100:4 -n 8 -N 1", &gpus("4 GPUs of a node for 8 tasks"));
    for fine in
        ["--gres=gpu:4 --ntasks-per-node=4", "--gres=gpu:a100:4(S:0-1) -n8 -N2", "--gres=gpu:4", "--gres=gpu_mem:9 -n2"]
    {
        in_head(&format!("#SBATCH {fine}"), &[]);
    }
}

/// A job could book GPUs and train on CPUs, or the other way round.
#[test]
fn gpus_that_are_booked_and_not_used() {
    let check = |head: &str, command: &str, expected: Expected| {
        finds(&format!("#!/bin/bash\n#SBATCH {head} -c 8\nsrun -K -c 8 {command}\n"), expected);
    };
    let idle = "--gres=gpu:4 books GPUs, and this computes on CPUs";
    let mend = "leave --devices out";
    check("--gres=gpu:4 --ntasks-per-node=4", "enmasse train data --devices cpu", &[(3, idle, mend)]);
    check("--gres=gpu:4 --ntasks-per-node=4", "/opt/enmasse train --devices=cpu:1 data", &[(3, idle, mend)]);
    check("--gres=gpu:4 --ntasks-per-node=4", "enmasse train --device cpu data", &[(3, idle, mend)]);
    let none = [(3, "this computes on GPUs, and the job books none", "#SBATCH --gpus-per-task=1")];
    check("-n1", "enmasse train data --devices gpu", &none);
    check("-n1", "enmasse train data --device cuda", &none);
    let four = [(2, "--gpus-per-task=4: 4 GPUs for each task", "#SBATCH --gpus-per-task=1")];
    check("--gpus-per-task=4 -n2", "enmasse train data", &four);
    let few = [(2, "--gpus=4: 4 GPUs for 2 tasks", "#SBATCH --ntasks=4")];
    check("--gpus=4 -n2", "enmasse train data", &few);
    check("-G 4 -n2", "enmasse train data", &few);
    for (head, command) in [
        ("--gres=gpu:4 --ntasks-per-node=4", "enmasse train data"),
        ("--gres=gpu:4", "enmasse train data"),
        ("--gpus=4 -n4", "enmasse train data --devices gpu"),
        ("--gpus-per-task=1 -n4", "enmasse train -- --devices=cpu"),
        ("-n1", "--gres=gpu:1 enmasse train data --devices gpu"),
        ("-n1 --exclusive", "enmasse train data --devices gpu"),
        ("-n1", "enmasse train data --devices cpu:4"),
        ("--gpus=4 -n2", "python train.py"),
    ] {
        check(head, command, &[]);
    }
}

/// Nothing was found in these, and GPUs were idle or starved.
#[test]
fn gpus_beside_fewer_ranks_or_one_core() {
    let check = |head: &str, command: &str, expected: Expected| {
        finds(&format!("#!/bin/bash\n#SBATCH {head}\n{command}\n"), expected);
    };
    let launched = [(3, "--gres=gpu:4: 4 GPUs of a node for 2 launched ranks", "launch -n 4")];
    check("--gres=gpu:4 -c 32", "enmasse launch -n 2 enmasse train data", &launched);
    check("--gres=gpu:4 -c 32", "srun -K -c 32 enmasse launch --nproc-per-node=2 enmasse train data", &launched);
    check("--gres=gpu:4 -c 32", "enmasse launch -n 4 enmasse train data", &[]);
    check("--gres=gpu:4 -c 32", "enmasse launch enmasse train data -n 2", &[]);
    let few = [(3, "--gpus=2: 2 GPUs for 4 tasks of srun", "srun --ntasks=2")];
    check("--gpus=2 -c 8", "srun -K -c 8 -n 4 enmasse train data", &few);
    check("--gpus=2 -c 8", "srun -K -c 8 --ntasks=2 enmasse train data", &[]);
    check("--gres=gpu:4 -N 2 -c 8", "srun -K -c 8 -n 8 enmasse train data", &[]);
    check("--gres=gpu:4 -c 8", "srun -K -c 8 -n 1 enmasse train data", &[]);
    let starved = [(2, "--cpus-per-task=1: one core decodes the images of a GPU", "#SBATCH --cpus-per-task=8")];
    check("--gres=gpu:4 --ntasks-per-node=4 -c 1", "srun -K enmasse train data", &starved);
    check("--gres=gpu:4 --ntasks-per-node=4 -c 1", "srun -K -c 1 enmasse train data", &starved);
    check("--gres=gpu:4 --ntasks-per-node=4 -c 1", "srun -K -c 8 enmasse train data", &[]);
    check("--ntasks-per-node=4 -c 1", "srun -K enmasse train data", &[]);
}

#[test]
fn lines_of_directives() {
    let blank = |says, mend| [(2, says, mend)];
    in_head("#SBATCH --output= a.out", &blank("a blank beside the = of --output", "#SBATCH --output=a.out"));
    in_head("#SBATCH --output = a.out", &blank("a blank beside", "#SBATCH --output=a.out"));
    in_head("#SBATCH --output =a.out", &blank("a blank beside", "#SBATCH --output=a.out"));
    in_head("#SBATCH --output=", &blank("--output= has no value", "leave the line out"));
    in_head("#SBATCH --output= --requeue --open-mode=append", &blank("--output= has no value", "leave the line out"));
    in_head("#SBATCH -J=a", &blank("-J=a: sbatch takes the = as a part", "#SBATCH --job-name=a"));
    in_head("#SBATCH --output=$HOME/%j.out", &blank("Slurm expands no variables", "%j (job)"));
    in_head("#SBATCH --chdir=${HOME}", &blank("--chdir=$HOME: Slurm expands no variables", "command line"));
    in_head("# SBATCH --nodes=2", &blank("is a comment to Slurm", "#SBATCH --nodes=2"));
    in_head("#sbatch -N 2", &blank("is a comment to Slurm", "#SBATCH -N 2"));
    in_head("#SBATCH --requeue", &blank("the second start overwrites", "--open-mode=append"));
    in_head("#SBATCH --signal=B:USR1@90", &blank("goes to the shell", "#SBATCH --signal=USR1@90"));
    in_head("#SBATCH --time=1 --signal=USR1@90", &blank("comes at once: the time limit is 60 s", "--time"));
    for fine in [
        "##SBATCH --nodes=2",
        "# SBATCH reads these lines",
        "#SBATCH --job-name=\"a b\" # of --output= x",
        "#SBATCH -J 'it is' --exclusive --hold --requeue --open-mode append",
        "#SBATCH --time=10 --signal=USR1@90 --output=%x-%j.out",
        "#SBATCH",
    ] {
        in_head(fine, &[]);
    }
    let late = "#!/bin/bash\n#SBATCH --output=logs/%j.out -c 1\nmkdir -p logs/";
    finds(late, &[(2, "--output: Slurm opens the file before the script creates logs", "mkdir -p logs")]);
    finds("#!/bin/bash\n#SBATCH --output=logs/%j.out -c 1\nmkdir -p other", &[]);
    let waits = "#!/bin/bash\n#SBATCH --signal=B:USR1@90 -c 1\nsrun python a.py &\nwait";
    finds(waits, &[]);
    finds("#!/bin/bash\n#SBATCH -c 1\ncd x\n#SBATCH --nodes=2", &[(4, "comes after the first command", "move it up")]);
    finds("#SBATCH -c 1\nhostname", &[(1, "does not name an interpreter", "#!/bin/bash")]);
    finds("#!/bin/bash\r\n#SBATCH -c 1\r\nhostname\r\n", &[(1, "carriage return", "sed -i")]);
    finds("", &[(1, "no --cpus-per-task", ""), (1, "does not name an interpreter", "")]);
}

#[test]
fn addresses_and_ports() {
    let task = "srun -K --ntasks=1 x";
    let list = |body: &str| {
        in_body(&format!("{body}\n{task}"), &[(5, "is a compressed list such as node[1-2]", "scontrol show hostnames")])
    };
    list("export MASTER_ADDR=$SLURM_NODELIST");
    list("MASTER_ADDR=\"${SLURM_JOB_NODELIST}\"");
    list("head_ip=${SLURM_JOB_NODELIST%%,*}");
    list("IFS=, read -ra HOSTS <<< \"$SLURM_JOB_NODELIST\"");
    list("first=$(echo $SLURM_NODELIST | cut -d, -f1)");
    list("srun -K a --dist-url tcp://$SLURM_STEP_NODELIST");
    list("srun -K a --rdzv-endpoint=$SLURM_JOB_NODELIST");
    let document = format!("cat <<E > a.py\nIP = os.environ['SLURM_STEP_NODELIST']\nE\n{task}");
    in_body(&document, &[(6, "SLURM_STEP_NODELIST is a compressed list", "scontrol show hostnames")]);
    for fine in [
        "MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)",
        "nodes=$SLURM_JOB_NODELIST; MASTER_ADDR=$(scontrol show hostname $nodes | head -1)",
        "echo MASTER_ADDR candidates: $SLURM_NODELIST",
        "echo \"NODELIST=\"${SLURM_NODELIST}",
        "nodes=$SLURM_JOB_NODELIST",
        "hosts=$(nodeset -e $SLURM_NODELIST)",
    ] {
        in_body(&format!("{fine}\n{task}"), &[]);
    }
    let port = |body: &str, port: &str| {
        in_body(
            &format!("{body}\n{task}"),
            &[(5, &format!("port {port} is the same in every job"), "MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))")],
        );
    };
    port("export MASTER_PORT=29500", "29500");
    port("MASTER_PORT=${MASTER_PORT:-12355}", "12355");
    port("srun -K a --master_port 29500", "29500");
    port("srun -K a --master-port=\"29500\"", "29500");
    port("srun -K a --dist-url tcp://$host:23456", "23456");
    port("srun -K a --rdzv_endpoint $host:29400 b", "29400");
    for fine in [
        "MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))",
        "export MASTER_PORT=$(expr 10000 + $(echo -n $SLURM_JOBID | tail -c 4))",
        "export X=29500 report=12345 SUPPORT=20000 # port 29500",
        "echo port 29500",
        "srun -K a --port-range 1",
        "srun -K a --rdzv-endpoint $host:$MASTER_PORT",
        "ssh -p 22 host",
    ] {
        in_body(&format!("{fine}\n{task}"), &[]);
    }
    let host = |body: &str| {
        in_body(&format!("{body}\n{task}"), &[(5, "is a different machine on each node", "scontrol show hostnames")])
    };
    host("export MASTER_ADDR=localhost");
    host("srun -K a --master_addr 127.0.0.1");
    finds("#!/bin/bash\n#SBATCH -c 1 -n 4\nexport MASTER_ADDR=localhost\nsrun -K a", &[]);
}

#[test]
fn input_is_bounded() {
    let long = format!("#!/bin/bash\n#SBATCH -c 1\n{}\n", "é".repeat(MAX_SCRIPT_BYTES));
    finds(&format!("{long}#SBATCH -N 2"), &[]);
    let many = "#SBATCH -n=2\n".repeat(10_000);
    assert_eq!(check(&many).len(), 100);
    let quoted = check(&format!("#!/bin/bash\n#SBATCH -c1 --output= {}", "x".repeat(1000)));
    assert!(quoted.iter().all(|finding| finding.problem.len() + finding.mend.len() < 300), "{quoted:?}");
}

proptest! {
    #[test]
    fn any_text_is_checked(text in "\\PC*") {
        check(&text);
    }

    /// Meaningful pieces, in any order.
    #[test]
    fn any_mixture_is_checked(pieces in prop::collection::vec(prop::sample::select(PIECES), 0..60)) {
        let text = pieces.concat();
        let lines = text.split('\n').count();
        for finding in check(&text) {
            prop_assert!((1..=lines).contains(&finding.line));
            let texts = [&finding.problem, &finding.mend];
            prop_assert!(texts.iter().all(|text| !text.is_empty() && !text.contains(char::is_control)));
        }
    }
}

const PIECES: &[&str] = &[
    "#!/bin/bash",
    "#SBATCH",
    "#sbatch ",
    "--nodes=",
    "-n",
    "-N2",
    "--output= ",
    "=",
    "--gres=gpu:",
    "gpu",
    "4",
    "é",
    "\n",
    "\n",
    "\r\n",
    " ",
    " ",
    "\t",
    "'",
    "\"",
    "\\",
    "\\\n",
    "$",
    "${",
    "}",
    "`",
    "(",
    ")",
    "|",
    "<<",
    "EOF",
    "srun",
    "python",
    "-m",
    "torchrun",
    "MASTER_ADDR=",
    "$SLURM_NODELIST",
    "MASTER_PORT",
    "29500",
    "tcp://",
    ":",
    "%%",
    "[",
    "]",
    "--signal=B:USR1@9",
    "--time=1",
    "\u{7}",
    "```",
];
