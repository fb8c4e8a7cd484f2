//! Aliases from other tools: options of timm, PyTorch's ImageNet example, torchvision's reference scripts and
//! Transformers, Lightning's `Trainer`, and the keys of ColossalAI's `config.py`. The same for command lines, files
//! and the environment.
//!
//! An alias is an alternative spelling of a setting only if it has the same meaning in that tool. Any other word has an
//! answer: what to give instead, or why there is no equivalent.

use super::{SETTINGS, Setting};

/// Settings, each with the words of other tools for it, separated by blanks, as these spell them. `-` and `_` are equivalent, case
/// does not matter, and one letter is a flag such as `-b`.
pub const ALIASES: &[(&str, &str)] = &[
    // Data.
    ("data", "data_path data_dir data_root"),
    ("size", "img_size image_size imgsz"),
    ("flip", "hflip"),
    ("num_classes", "nb_classes"),
    ("label_column", "label_column_name label_col"),
    ("task", "problem_type"),
    ("auto_augment", "aa"),
    ("vertical_flip", "vflip"),
    ("random_erasing", "random_erase reprob"),
    ("grayscale", "grayscale_prob"),
    ("gaussian_blur", "gaussian_blur_prob"),
    ("mixup", "mixup_alpha"),
    ("cutmix", "cutmix_alpha"),
    ("repeat_augment", "ra_reps aug_repeats"),
    // Model.
    ("model", "arch a"),
    ("weights", "initial_checkpoint"),
    ("freeze_bn", "norm_eval"),
    // Training.
    ("epochs", "num_epochs max_epochs num_train_epochs"),
    ("batch", "batch_size b per_device_train_batch_size"),
    ("global_batch", "global_batch_size total_batch_size"),
    ("lr", "learning_rate max_lr"),
    ("seed", "seed_everything"),
    ("optimizer", "opt"),
    ("weight_decay", "wd"),
    ("accumulate", "grad_accum_steps accumulate_grad_batches gradient_accumulation gradient_accumulation_steps"),
    ("clip_norm", "gradient_clip_val clip_grad_norm clip_grad max_grad_norm gradient_clipping"),
    ("ema", "ema_decay"),
    ("drop_path", "drop_path_rate stochastic_depth_prob"),
    (
        "recompute",
        "grad_checkpointing gradient_checkpointing gradient_checkpointing_enable checkpoint_activations \
         activation_checkpointing",
    ),
    ("schedule", "sched lr_scheduler lr_scheduler_type"),
    ("step_size", "lr_step_size decay_epochs"),
    ("gamma", "lr_gamma decay_rate factor"),
    ("plateau_patience", "patience_epochs"),
    ("restart_epochs", "T_0"),
    ("restart_mult", "T_mult lr_cycle_mul"),
    ("warmup_epochs", "lr_warmup_epochs"),
    ("label_smoothing", "smoothing label_smoothing_factor"),
    ("loss", "criterion loss_fn"),
    ("class_weights", "class_weight weighted_loss pos_weight"),
    ("monitor", "best_by metric_for_best_model eval_metric"),
    ("patience", "early_stopping_patience"),
    ("val_every", "check_val_every_n_epoch"),
    ("find_lr", "lr_find lr_finder auto_lr_find"),
    // Devices and ranks.
    ("loader_threads", "workers j num_workers dataloader_num_workers"),
    ("sync_bn", "sync_batchnorm syncBN"),
    ("tensor_parallel", "tensor_parallel_size tensor_model_parallel_size"),
    // Output.
    ("out", "output_dir"),
    ("log_every", "print_freq p log_interval log_every_n_steps"),
];

/// Words of other tools that are no settings, and the answer to each: the end of a message that begins with the word.
pub const ANSWERS: &[(&str, &str)] = &[
    // Data.
    ("dataset", "the data set is recognised by its files; give its folder as DATA"),
    ("dataset_download download", "enmasse data fetch NAME downloads a known data set; give its folder as DATA"),
    (
        "train_dir val_dir train_split val_split train_data val_data",
        "DATA holds both parts as train/ and val/; without them, a fifth of the folder is used for validation",
    ),
    ("class_map", "the names of the class folders, in order, are the classes; leave it out"),
    ("input_size train_crop_size val_crop_size", "images have one size; give --size PIXELS"),
    (
        "val_resize_size",
        "give --crop-pct SHARE, the part of the resized image that is evaluated, such as 0.875 for 224 of 256",
    ),
    ("no_aug", "give --augment none --flip 0"),
    ("remode", "give --erasing-value mean, or random"),
    ("recount", "one part of an image is erased; leave it out"),
    ("color_jitter_prob", "--color-jitter changes every image; leave it out"),
    ("cutmix_minmax", "give --cutmix, which draws the area"),
    ("mixup_prob", "every pair of images is mixed; leave it out"),
    ("mixup_switch_prob", "--mixup and --cutmix are equally frequent; leave it out"),
    ("mixup_mode", "each pair of images has a draw of its own; leave it out"),
    ("mixup_off_epoch", "images are mixed in every epoch; leave it out"),
    (
        "multilabel multi_label regression bce_loss",
        "give --task multi-label or --task regression, with a table of images that has labels or numbers",
    ),
    ("ra_sampler", "give --repeat-augment 3, torchvision's default"),
    ("dummy", "enmasse bench step measures on synthetic images"),
    // Model.
    ("freeze_backbone", "give --fine-tune head, or --freeze-layers to train the classifier on augmented images"),
    ("backbone_lr", "give --lr, and --head-lr-mult for the head"),
    ("find_unused_parameters", "give --unused-parameters zero"),
    ("dropout drop", "dropout is part of a model; leave it out"),
    // Training.
    (
        "validation_batch_size val_batch_size eval_batch_size per_device_eval_batch_size",
        "validation uses --batch too; leave it out",
    ),
    ("warmup warmup_steps warmup_ratio", "give --warmup-epochs EPOCHS, such as 0.5"),
    ("warmup_lr lr_warmup_decay lr_warmup_method", "the rate rises linearly from a hundredth of --lr; leave it out"),
    ("min_lr lr_min", "give --lrf, the fraction of --lr at which the cosine ends"),
    ("start_epoch", "--resume goes on at the last checkpoint; leave it out"),
    ("ckpt_path", "name the run folder: --resume RUN"),
    ("model_ema", "give --ema SHARE, such as 0.9998"),
    (
        "model_ema_decay",
        "give --ema SHARE, which counts every step: timm's value as it is, or of torchvision's \
         (1 - (1 - DECAY) * RANKS * BATCH * STEPS / EPOCHS) ^ (1 / STEPS), with an average every STEPS steps (32)",
    ),
    ("model_ema_steps", "the average includes every step; leave it out"),
    ("norm_weight_decay bias_weight_decay", "give --no-decay-norm-bias for no weight decay on norms and biases"),
    ("opt_betas betas adam_beta1 adam_beta2", "give --opt-arg betas=0.9,0.999 (adamw's default)"),
    ("opt_eps eps epsilon adam_epsilon", "give --opt-arg epsilon=1e-8 (adamw's default)"),
    ("opt_kwargs opt_args", "give --opt-arg NAME=VALUE, once for each hyper-parameter"),
    ("trust_coefficient", "give --opt-arg trust_coefficient=0.001 (lars's default)"),
    (
        "gradient_clip_algorithm clip_mode",
        "gradients are clipped by their norm over all parameters, with --clip-norm; leave it out",
    ),
    (
        "early_stopping early_stop",
        "give --patience EPOCHS, such as 5, after which training ends if none of them was the best",
    ),
    ("time_limit max_duration", "give --max-time TIME, such as 2h"),
    ("auto_scale_batch_size auto_find_batch_size", "give --find-batch, and then the --batch that it suggests"),
    (
        "amp fp16 bf16 amp_dtype native_amp apex_amp",
        "give --precision bf16, which needs no loss scaling, or f16, on a GPU",
    ),
    ("tf32 allow_tf32", "give --precision tf32, on a GPU; otherwise f32 means f32"),
    ("deterministic use_deterministic_algorithms", "every run gives the same bits again; leave it out"),
    ("benchmark cudnn_benchmark", "give --tune"),
    ("torchcompile compile channels_last", "every run is compiled, in the device's layout; leave it out"),
    ("overfit_batches", "give --limit-train-batches N; every epoch draws others"),
    ("num_sanity_val_steps", "--fast-dev-run tries training and validation beforehand; leave it out"),
    ("val_check_interval", "validation follows an epoch, with --val-every N only every N-th"),
    ("evaluate e test_only", "enmasse eval RUN DATA evaluates"),
    // Devices and ranks.
    (
        "gpus num_gpus n_gpus gpu cuda no_cuda no_accel",
        "GPUs are --devices gpu:N, or auto, which takes all if they work; ranks on CPUs are --devices cpu:N",
    ),
    ("accelerator device", "--devices names the kind too, as in auto, gpu:1 and cpu:4"),
    (
        "multiprocessing_distributed",
        "training is always data-parallel; the number of ranks is --devices gpu:N or cpu:N",
    ),
    (
        "parallel zero pipeline_parallel model_parallel fsdp deepspeed",
        "every rank trains the whole model, unless --strategy zero1, --stages LAYERS or --tensor-parallel N divides it",
    ),
    ("world_size", "give --devices cpu:N for N ranks on this machine"),
    ("num_nodes nnodes", "enmasse launch --nnodes N starts ranks on several machines"),
    (
        "nproc_per_node nproc",
        "this belongs to enmasse launch; without a launcher the number of ranks is --devices cpu:N",
    ),
    ("node_rank master_addr master_port", "this belongs to enmasse launch; see enmasse launch --help"),
    ("rank local_rank dist_url init_method", "the launcher of a rank sets it; leave it out"),
    (
        "dist_backend backend",
        "ranks share memory on one machine; --transport mpi has MPI between machines, and otherwise it is TCP",
    ),
    ("dist_bn", "running statistics are the mean over all ranks; leave it out"),
    (
        "pin_mem pin_memory prefetch_factor persistent_workers",
        "the loader uses threads, and needs no such setting; leave it out",
    ),
    ("cache_dataset", "images are read anew in each epoch; leave it out"),
    // Output.
    (
        "compress compression gradient_compression fp16_allreduce",
        "give --reduce-precision bf16, which halves what travels between ranks",
    ),
    (
        "output default_root_dir log_dir experiment project name run_name exist_ok",
        "give --out DIR, which holds only this run",
    ),
    ("logger log_wandb wandb report_to", "every run writes TensorBoard events and metrics.jsonl; leave it out"),
    ("enable_checkpointing enable_progress_bar enable_model_summary", "there is nothing to switch; leave it out"),
    ("profiler", "--trace-steps N draws a timeline of N steps"),
    (
        "checkpoint_hist save_top_k",
        "a run keeps its last and its best checkpoint; --keep N keeps those of the N newest epochs too",
    ),
];

impl Setting {
    /// The setting that a word names, in its own spelling or another tool's.
    pub fn spelled(word: &str) -> Option<&'static Setting> {
        SETTINGS.iter().find(|setting| is_same(setting.name, word)).or_else(|| {
            let (name, _) = ALIASES.iter().find(|(_, words)| has(words, word))?;
            Setting::find(name)
        })
    }

    /// The words of other tools for this setting.
    pub fn aliases(&self) -> impl Iterator<Item = &'static str> + use<> {
        let words = ALIASES.iter().find(|(name, _)| *name == self.name).map(|(_, words)| *words);
        words.into_iter().flat_map(str::split_whitespace)
    }
}

/// The answer to a user of this word, which is not a setting: the end of a message that begins with the word.
pub fn answer(word: &str) -> Option<&'static str> {
    ANSWERS.iter().find(|(words, _)| has(words, word)).map(|(_, answer)| *answer)
}

fn has(words: &str, word: &str) -> bool {
    words.split_whitespace().any(|known| is_same(known, word))
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
        let aliases = ALIASES.iter().map(|(name, words)| (words, Ok(*name)));
        for (words, meaning) in aliases.chain(ANSWERS.iter().map(|(words, answer)| (words, Err(*answer)))) {
            for word in words.split_whitespace() {
                assert!(Setting::find(word).is_none(), "{word} is a setting");
                assert!(seen.insert(word.to_ascii_lowercase()), "{word} is there twice");
                let spelled = [word.replace('_', "-"), word.to_ascii_uppercase(), word.to_owned()];
                for spelled in &spelled {
                    let in_a_file = toml_settings(&format!("{spelled} = 1"), "x.toml");
                    match meaning {
                        Ok(name) => {
                            assert_eq!(in_a_file.unwrap()[0].0.name, name, "{spelled}");
                            assert!(Setting::find(name).unwrap().aliases().any(|alias| alias == word), "{word}");
                        }
                        // A file may have Lightning's word.
                        Err(_) if word == "gpus" => assert_eq!(in_a_file.unwrap()[0].1, "gpu:1"),
                        Err(answer) => {
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
        for (words, answer) in ANSWERS {
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
        assert_eq!(Setting::spelled("ema-decay").map(|setting| setting.name), Some("ema"));
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
