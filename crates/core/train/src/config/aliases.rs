//! Aliases from other tools: options of timm, PyTorch's ImageNet example, torchvision's reference scripts and
//! Transformers, Lightning's `Trainer`, and the keys of ColossalAI's `config.py`. One table for command lines, files
//! and the environment.
//!
//! An alias is an alternative spelling of a setting only if it has the same meaning in that tool. Any other word has an
//! answer: what to give instead, or why there is no equivalent.

use super::{SETTINGS, Setting};
use Meaning::{Alias, Answer};

/// The meaning of an option of another tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// Another spelling of the setting with this name.
    Alias(&'static str),
    /// Not a setting: the end of a message that begins with the word.
    Answer(&'static str),
}

/// All of them, as their tools spell them. `-` and `_` are equivalent, case does not matter, and one letter is
/// a flag such as `-b`.
pub const ALIASES: &[(&[&str], Meaning)] = &[
    // Data.
    (&["data_path", "data_dir", "data_root"], Alias("data")),
    (&["img_size", "image_size", "imgsz"], Alias("size")),
    (&["hflip"], Alias("flip")),
    (&["nb_classes"], Alias("num_classes")),
    (&["dataset"], Answer("the data set is recognised by its files; give its folder as DATA")),
    (
        &["dataset_download", "download"],
        Answer("enmasse data fetch NAME downloads a known data set; give its folder as DATA"),
    ),
    (
        &["train_dir", "val_dir", "train_split", "val_split", "train_data", "val_data"],
        Answer("DATA holds both parts as train/ and val/; without them, a fifth of the folder is used for validation"),
    ),
    (&["class_map"], Answer("the names of the class folders, in order, are the classes; leave it out")),
    (&["input_size", "train_crop_size", "val_crop_size"], Answer("images have one size; give --size PIXELS")),
    (
        &["val_resize_size", "crop_pct"],
        Answer("validation images are resized in torchvision's proportion, to 256 for --size 224; leave it out"),
    ),
    (&["interpolation"], Answer("images are resized bilinearly, as by Pillow; leave it out")),
    (&["no_aug"], Answer("give --augment none --flip 0")),
    (&["aa"], Alias("auto_augment")),
    (&["vflip"], Alias("vertical_flip")),
    (&["random_erase", "reprob"], Alias("random_erasing")),
    (&["remode"], Answer("give --erasing-value mean, or random")),
    (&["recount"], Answer("one part of an image is erased; leave it out")),
    (&["grayscale_prob"], Alias("grayscale")),
    (&["gaussian_blur_prob"], Alias("gaussian_blur")),
    (&["color_jitter_prob"], Answer("--color-jitter changes every image; leave it out")),
    (&["mixup_alpha"], Alias("mixup")),
    (&["cutmix_alpha"], Alias("cutmix")),
    (&["cutmix_minmax"], Answer("give --cutmix, which draws the area")),
    (&["mixup_prob"], Answer("every pair of images is mixed; leave it out")),
    (&["mixup_switch_prob"], Answer("--mixup and --cutmix are equally frequent; leave it out")),
    (&["mixup_mode"], Answer("each pair of images has a draw of its own; leave it out")),
    (&["mixup_off_epoch"], Answer("images are mixed in every epoch; leave it out")),
    (
        &[
            "multilabel",
            "multi_label",
            "regression",
            "task",
            "problem_type",
            "bce_loss",
            "label_column_name",
            "label_col",
        ],
        Answer("an image has one class, its folder's name; several labels, and numbers as targets, are not supported"),
    ),
    (&["ra_reps", "aug_repeats"], Alias("repeat_augment")),
    (&["ra_sampler"], Answer("give --repeat-augment 3, torchvision's default")),
    (&["dummy"], Answer("enmasse bench step measures on synthetic images")),
    // Model.
    (&["arch", "a"], Alias("model")),
    (&["initial_checkpoint"], Alias("weights")),
    (
        &["pretrained"],
        Answer("enmasse comes without weights; give --weights FILE, such as a .pth file of torchvision's"),
    ),
    (&["freeze_backbone"], Answer("give --freeze-layers, which trains only the classifier")),
    (&["find_unused_parameters"], Answer("give --unused-parameters zero")),
    (&["dropout", "drop", "drop_path"], Answer("dropout is part of a model; leave it out")),
    // Training.
    (&["num_epochs", "max_epochs", "num_train_epochs"], Alias("epochs")),
    (&["batch_size", "b", "per_device_train_batch_size"], Alias("batch")),
    (&["learning_rate"], Alias("lr")),
    (&["seed_everything"], Alias("seed")),
    (&["opt"], Alias("optimizer")),
    (&["wd"], Alias("weight_decay")),
    (
        &["grad_accum_steps", "accumulate_grad_batches", "gradient_accumulation", "gradient_accumulation_steps"],
        Alias("accumulate"),
    ),
    (&["gradient_clip_val", "clip_grad_norm", "clip_grad", "max_grad_norm", "gradient_clipping"], Alias("clip_norm")),
    (&["ema_decay"], Alias("ema")),
    (&["sched", "lr_scheduler", "lr_scheduler_type"], Alias("schedule")),
    (&["lr_step_size", "decay_epochs"], Alias("step_size")),
    (&["lr_gamma", "decay_rate"], Alias("gamma")),
    (&["lr_warmup_epochs"], Alias("warmup_epochs")),
    (&["smoothing", "label_smoothing_factor"], Alias("label_smoothing")),
    (
        &["global_batch_size", "total_batch_size"],
        Answer("give --batch, the samples of one shard; a rank has one shard unless told otherwise"),
    ),
    (
        &["validation_batch_size", "val_batch_size", "eval_batch_size", "per_device_eval_batch_size"],
        Answer("validation uses --batch too; leave it out"),
    ),
    (&["warmup", "warmup_steps", "warmup_ratio"], Answer("give --warmup-epochs EPOCHS, such as 0.5")),
    (
        &["warmup_lr", "lr_warmup_decay", "lr_warmup_method"],
        Answer("the rate rises linearly from a hundredth of --lr; leave it out"),
    ),
    (&["min_lr", "lr_min"], Answer("give --lrf, the fraction of --lr at which the cosine ends")),
    (&["start_epoch"], Answer("--resume goes on at the last checkpoint; leave it out")),
    (&["ckpt_path"], Answer("name the run folder: --resume RUN")),
    (&["model_ema"], Answer("give --ema SHARE, such as 0.9998")),
    (
        &["model_ema_decay"],
        Answer(
            "give --ema SHARE, which counts every step: timm's value as it is, or of torchvision's \
             (1 - (1 - DECAY) * RANKS * BATCH * STEPS / EPOCHS) ^ (1 / STEPS), with an average every STEPS steps (32)",
        ),
    ),
    (&["model_ema_steps"], Answer("the average includes every step; leave it out")),
    (
        &["norm_weight_decay", "bias_weight_decay"],
        Answer("give --no-decay-norm-bias for no weight decay on norms and biases"),
    ),
    (
        &["opt_betas", "betas", "opt_eps", "adam_beta1", "adam_beta2", "adam_epsilon"],
        Answer("adamw uses PyTorch's defaults; leave it out"),
    ),
    (
        &["gradient_clip_algorithm", "clip_mode"],
        Answer("gradients are clipped by their norm over all parameters, with --clip-norm; leave it out"),
    ),
    (
        &["patience", "patience_epochs", "early_stopping", "early_stop", "early_stopping_patience"],
        Answer("there is no early stopping yet; leave it out: the best epoch's weights are kept in any case"),
    ),
    (
        &["monitor", "metric_for_best_model", "eval_metric"],
        Answer("the best epoch is that of the highest validation accuracy; leave it out"),
    ),
    (
        &["class_weights", "class_weight", "weighted_loss"],
        Answer("there are no weights of classes in the loss; --balance classes shows all classes equally often"),
    ),
    (
        &["max_time", "time_limit", "max_duration"],
        Answer(
            "there is no limit of time; give --max-steps STEPS, or stop the run by Ctrl-C, which saves it for --resume",
        ),
    ),
    (
        &["find_lr", "lr_find", "lr_finder", "auto_lr_find"],
        Answer("there is no search for a rate; give --lr RATE, and try several with --max-steps STEPS"),
    ),
    (
        &["amp", "fp16", "bf16", "amp_dtype", "native_amp", "apex_amp"],
        Answer("give --precision bf16, which needs no loss scaling, or f16, on a GPU"),
    ),
    (&["tf32", "allow_tf32"], Answer("give --precision tf32, on a GPU; otherwise f32 means f32")),
    (&["deterministic", "use_deterministic_algorithms"], Answer("every run gives the same bits again; leave it out")),
    (&["benchmark", "cudnn_benchmark"], Answer("give --tune")),
    (
        &["torchcompile", "compile", "channels_last"],
        Answer("every run is compiled, in the device's layout; leave it out"),
    ),
    (
        &["fast_dev_run", "limit_train_batches", "overfit_batches"],
        Answer("give --max-steps STEPS, after which the run validates and ends"),
    ),
    (&["limit_val_batches", "num_sanity_val_steps"], Answer("every validation is complete; leave it out")),
    (&["check_val_every_n_epoch", "val_check_interval"], Answer("validation follows every epoch; leave it out")),
    (&["evaluate", "e", "test_only"], Answer("enmasse eval RUN DATA evaluates")),
    // Devices and ranks.
    (&["workers", "j", "num_workers", "dataloader_num_workers"], Alias("loader_threads")),
    (&["sync_batchnorm", "syncBN"], Alias("sync_bn")),
    (
        &["gpus", "num_gpus", "n_gpus", "gpu", "cuda", "no_cuda", "no_accel"],
        Answer("GPUs are --devices gpu:N, or auto, which takes all if they work; ranks on CPUs are --devices cpu:N"),
    ),
    (&["accelerator"], Answer("--devices names the kind too, as in auto, gpu:1 and cpu:4")),
    (
        &["multiprocessing_distributed"],
        Answer("training is always data-parallel; the number of ranks is --devices gpu:N or cpu:N"),
    ),
    (
        &["parallel", "zero", "tensor_parallel", "pipeline_parallel", "model_parallel", "fsdp", "deepspeed"],
        Answer("there is only data parallelism so far; leave it out"),
    ),
    (&["device"], Answer("--devices names the kind too, as in auto, gpu:1 and cpu:4")),
    (&["world_size"], Answer("give --devices cpu:N for N ranks on this machine")),
    (&["num_nodes", "nnodes"], Answer("enmasse launch --nnodes N starts ranks on several machines")),
    (
        &["nproc_per_node", "nproc"],
        Answer("this belongs to enmasse launch; without a launcher the number of ranks is --devices cpu:N"),
    ),
    (&["node_rank", "master_addr", "master_port"], Answer("this belongs to enmasse launch; see enmasse launch --help")),
    (&["rank", "local_rank", "dist_url", "init_method"], Answer("the launcher of a rank sets it; leave it out")),
    (
        &["dist_backend", "backend"],
        Answer("ranks share memory on one machine; --transport mpi has MPI between machines, and otherwise it is TCP"),
    ),
    (&["dist_bn"], Answer("running statistics are the mean over all ranks; leave it out")),
    (
        &["pin_mem", "pin_memory", "prefetch_factor", "persistent_workers"],
        Answer("the loader uses threads, and needs no such setting; leave it out"),
    ),
    (&["cache_dataset"], Answer("images are read anew in each epoch; leave it out")),
    // Output.
    (&["output_dir"], Alias("out")),
    (
        &["compress", "compression", "gradient_compression", "fp16_allreduce"],
        Answer("give --reduce-precision bf16, which halves what travels between ranks"),
    ),
    (
        &["output", "default_root_dir", "log_dir", "experiment", "project", "name", "run_name", "exist_ok"],
        Answer("give --out DIR, which holds only this run"),
    ),
    (&["print_freq", "p", "log_interval", "log_every_n_steps"], Alias("log_every")),
    (
        &["logger", "log_wandb", "wandb", "report_to"],
        Answer("every run writes TensorBoard events and metrics.jsonl; leave it out"),
    ),
    (
        &["enable_checkpointing", "enable_progress_bar", "enable_model_summary"],
        Answer("there is nothing to switch; leave it out"),
    ),
    (&["profiler"], Answer("--trace-steps N draws a timeline of N steps")),
    (
        &["checkpoint_hist", "save_top_k"],
        Answer("a run keeps its last and its best checkpoint; --keep N keeps those of the N newest epochs too"),
    ),
];

impl Setting {
    /// The setting that a word names, in its own spelling or another tool's.
    pub fn spelled(word: &str) -> Option<&'static Setting> {
        let own = SETTINGS.iter().find(|setting| is_same(setting.name, word));
        own.or_else(|| match meaning(word)? {
            Alias(name) => Setting::find(name),
            Answer(_) => None,
        })
    }

    /// The words of other tools for this setting.
    pub fn aliases(&self) -> impl Iterator<Item = &'static str> + use<> {
        let name = self.name;
        ALIASES.iter().filter(move |(_, meaning)| *meaning == Alias(name)).flat_map(|(words, _)| *words).copied()
    }
}

/// The answer to a user of this word, which is not a setting: the end of a message that begins with the word.
pub fn answer(word: &str) -> Option<&'static str> {
    match meaning(word)? {
        Alias(_) => None,
        Answer(answer) => Some(answer),
    }
}

fn meaning(word: &str) -> Option<Meaning> {
    let known = |(words, _): &&(&[&str], Meaning)| words.iter().any(|known| is_same(known, word));
    ALIASES.iter().find(known).map(|(_, meaning)| *meaning)
}

/// Whether two spellings are of the same word.
fn is_same(known: &str, word: &str) -> bool {
    let plain = |byte: u8| if byte == b'-' { b'_' } else { byte.to_ascii_lowercase() };
    known.bytes().map(plain).eq(word.bytes().map(plain))
}

/// The setting whose name, or other spelling, is most similar to a mistyped word; `None` if none is similar.
pub(super) fn nearest(word: &str) -> Option<&'static Setting> {
    let word = word.replace('-', "_").to_ascii_lowercase();
    let spellings = |setting: &'static Setting| std::iter::once(setting.name).chain(setting.aliases());
    let all = SETTINGS.iter().flat_map(|setting| spellings(setting).map(move |spelling| (setting, spelling)));
    let near = all.filter(|(_, spelling)| is_near(&word, &spelling.to_ascii_lowercase()));
    near.min_by_key(|(_, spelling)| edit_distance(&word, spelling)).map(|(setting, _)| setting)
}

/// Whether one word may be a mistyped form of the other: at most a third of it differs.
pub fn is_near(typed: &str, meant: &str) -> bool {
    edit_distance(typed, meant) <= (typed.chars().count() + 1) / 3
}

/// Levenshtein's distance: insertions, deletions and substitutions of characters.
fn edit_distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, &b) in to.iter().enumerate() {
            let substituted = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::config::layers::toml_settings;

    #[test]
    fn every_word_has_one_meaning() {
        let mut seen = BTreeSet::new();
        for (words, meaning) in ALIASES {
            for word in *words {
                assert!(Setting::find(word).is_none(), "{word} is a setting");
                assert!(seen.insert(word.to_ascii_lowercase()), "{word} is there twice");
                let spelled = [word.replace('_', "-"), word.to_ascii_uppercase(), (*word).to_owned()];
                for spelled in &spelled {
                    let in_a_file = toml_settings(&format!("{spelled} = 1"), "x.toml");
                    match meaning {
                        Alias(name) => {
                            assert_eq!(in_a_file.unwrap()[0].0.name, *name, "{spelled}");
                            assert!(Setting::find(name).unwrap().aliases().any(|alias| alias == *word), "{word}");
                        }
                        Answer(answer) => {
                            assert_eq!(in_a_file.unwrap_err().to_string(), format!("{spelled} in x.toml: {answer}"));
                        }
                    }
                }
            }
        }
    }

    /// Flags of other commands appear along with the command's name.
    #[test]
    fn answers_name_existing_settings() {
        for (words, meaning) in ALIASES {
            let Answer(answer) = meaning else { continue };
            assert!(!answer.ends_with('.'), "{answer}");
            for flag in answer.split([' ', ',', ';']).filter(|_| !answer.contains("enmasse launch")) {
                let Some(flag) = flag.strip_prefix("--") else { continue };
                assert!(Setting::find(flag).is_some(), "{words:?}: {flag}");
            }
        }
    }

    /// Regression test: torchvision's value, which counts some steps only, was taken for the share of each step.
    #[test]
    fn the_decay_of_an_average_has_two_meanings() {
        assert_eq!(meaning("ema-decay"), Some(Alias("ema")));
        let told = answer("model-ema-decay").unwrap_or_default();
        let formula = "(1 - (1 - DECAY) * RANKS * BATCH * STEPS / EPOCHS) ^ (1 / STEPS)";
        assert!(told.contains("give --ema SHARE, which counts every step") && told.contains(formula), "{told}");
    }

    #[test]
    fn mistyped_words() {
        let check = |word: &str, expected: Option<&str>| {
            assert_eq!(nearest(word).map(|setting| setting.name), expected, "{word}");
        };
        check("bach", Some("batch"));
        check("bacth", Some("batch"));
        check("epoch", Some("epochs"));
        check("learnig_rate", Some("lr"));
        check("Batch-Sise", Some("batch"));
        check("sync-bm", Some("sync_bn"));
        // No suggestion is better than a wrong one.
        check("train", None);
        check("rate", None);
        check("x", None);
        check("", None);
    }

    #[test]
    fn edit_distances() {
        let check = |from, to, expected| assert_eq!(edit_distance(from, to), expected, "{from} {to}");
        check("", "", 0);
        check("", "lr", 2);
        check("batch", "batch", 0);
        check("bach", "batch", 1);
        check("kitten", "sitting", 3);
        check("ü", "u", 1);
    }
}
