"""The settings of `enmasse.train`, made from the program's table of settings. Do not edit it:

    WRITE_SETTINGS=1 cargo test -p enmasse-python settings
"""
import os
from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict


class Settings(TypedDict, total=False):
    """The keywords of `train`. None is a setting's default."""

    config: str | os.PathLike[str] | None
    """Read settings from this TOML file, or from a config.py of ColossalAI's, of which nothing runs."""
    gpus: int | str | Sequence[int] | None
    """Lightning's word: a number of GPUs, -1 for all, or a list of them. The same as `devices`."""

    # Data.

    stage: str | os.PathLike[str] | None
    """Folder for a copy of the data. On a disk of the node, such as $SLURM_TMPDIR. The data is copied there once for
    all ranks of the node, and again only when it has changed. The run reads the copy, with the same results, and keeps
    the path of the original. Default: the data is read where it is."""
    cache_dir: str | os.PathLike[str] | None
    """Folder for what is read of servers. What a run reads of a DATA on a server is kept here, up to --cache-limit, for
    its ranks on this node and for later runs. A disk of the node is best. Default: ~/.cache/enmasse/objects."""
    cache_limit: str | float | None
    """Size of that folder. Such as 200GB, 1.5TB or 512MiB. What does not fit is fetched again in each epoch. Default:
    50GB."""
    label_pattern: str | float | None
    """Where files' names have their class. For images without class folders, such as {class}.{number}.jpg for
    cat.0.jpg. {class} takes as few characters as fit, {number} takes digits, and * anything. A pattern with a / is for
    paths below DATA, another for names. Default: classes are folders."""
    path_column: str | float | None
    """Column of images in a table. Of their paths in a manifest, or of their bytes in Parquet files. Found by its name
    if there is one: path, file, filename, image, image_path and alike. Default: found by its name."""
    label_column: str | float | None
    """Column of classes in a table. Of a manifest or Parquet files, or the field in the .json files of WebDataset; of
    labels or numbers, too, and several separated by commas. Found by its name if there is one: label, class, target,
    category and alike. Default: found by its name."""
    task: Literal["classification", "multi-label", "regression"] | None
    """What to predict of an image. "classification" is one class, "multi-label" any number of labels, and "regression"
    one number or several. Labels and numbers are in tables: a manifest or Parquet files. Default: found from the
    table's columns."""
    manifest_root: str | os.PathLike[str] | None
    """Where the paths in a manifest begin. The folder that relative paths are relative to. Default: the manifest's
    folder."""
    num_classes: int | None
    """Classes to expect in the data. Another number is an error."""
    size: int | None
    """Height and width of the images. This is what the model sees; images of other sizes are resized. Default: the data
    set's own: 32 for CIFAR, 28 for MNIST, 64 for "shapes"; 224 for a folder."""
    channels: int | None
    """Channels that the model sees. 1 converts colour images to grey, as torchvision's Grayscale does (Pillow's
    convert("L")). 3 repeats the grey of MNIST. Default: 1 for MNIST and Fashion-MNIST, 3 for other data, and where
    --mean or --std has three numbers."""
    mean: float | Sequence[float] | None
    """Mean of each colour channel. On the scale 0 to 1; one number is for all channels. Default: the data set's own."""
    std: float | Sequence[float] | None
    """Std of each colour channel. On the scale 0 to 1; one number is for all channels. Default: the data set's own."""
    interpolation: Literal["bilinear", "bicubic"] | None
    """Filter that resizes images. In training, validation and prediction. Both are Pillow's and torchvision's, with
    antialiasing; "bicubic" is sharper. Default: bilinear."""
    crop_pct: float | None
    """Share of an image that is evaluated. The middle of the image, along its shorter side, which is resized to --size
    divided by this. timm's name. Default: 0.875, as 224 of 256 pixels; 1 for CIFAR and MNIST."""
    augment: Literal["resized-crop", "crop", "none"] | None
    """What is sampled of a training image. A part of it that is resized, a crop of the padded image, or always the
    same. Default: crop for CIFAR, none for MNIST, resized-crop for a folder."""
    scale: float | Sequence[float] | None
    """Size of a resized crop. Least and largest share of the image's area that it covers, as torchvision's and timm's
    scale. Small parts make a task harder, which long training needs and fine-tuning on few images does not. Default:
    0.08,1."""
    ratio: float | Sequence[float] | None
    """Shape of a resized crop. Least and largest width of it, divided by its height, before it is resized to a square.
    Default: 3/4 to 4/3."""
    crop_padding: int | None
    """Border before a crop. Pixels around an image before its crop is sampled. Default: 4."""
    padding_mode: Literal["constant", "reflect"] | None
    """What the border shows. As torchvision's padding_mode: "constant" is black, "reflect" mirrors the image at its
    outermost pixels. Default: constant."""
    flip: str | float | None
    """Probability of mirroring an image. Or "alternating", airbench's: each image is flipped in every second epoch,
    half of them in the first. Validation images are never flipped. Default: 0.5; 0 for MNIST."""
    vertical_flip: float | None
    """Flip top and bottom. The probability for an image, which then stands upside down as in a mirror below it.
    Default: 0."""
    rotation: float | None
    """Largest rotation of an image. The angle is sampled from both directions. Corners that come from outside are
    black. Default: 0."""
    perspective: float | None
    """Change the perspective. The probability for an image. Each of its corners moves towards the middle by up to a
    quarter of the image. Default: 0."""
    auto_augment: Literal["randaugment", "trivialaugment", "augmix", "imagenet", "cifar10", "svhn", "none"] | None
    """Automatic augmentation. As by torchvision's classes RandAugment, TrivialAugmentWide and AugMix; imagenet, cifar10
    and svhn are the policies of its AutoAugment. Default: none."""
    ra_num_ops: int | None
    """Operations of randaugment. As many are sampled for each image. Default: 2."""
    ra_magnitude: int | None
    """Strength of randaugment. Its operations have 31 strengths, from 0 to 30. Default: 9."""
    augmix_severity: int | None
    """Strength of augmix. An operation has one of its weakest LEVEL strengths, of ten. Default: 3."""
    color_jitter: float | Sequence[float] | None
    """Random colours of an image. Largest changes of brightness, contrast, saturation and hue. One number is for the
    first three; the hue's is at most 0.5. Default: no change."""
    grayscale: float | None
    """Make images grey. The probability for an image, which keeps three channels. Default: 0."""
    gaussian_blur: float | None
    """Blur images. The probability for an image. The Gaussian has a std between 0.1 and 2 pixels. Default: 0."""
    random_erasing: float | None
    """Erase a part of images. The probability for an image. A rectangle of 2 to 33 % of it is painted over, after all
    other changes. Default: 0."""
    erasing_value: Literal["mean", "random"] | None
    """Colours of an erased part. "mean" is the data set's mean colour, as torchvision's value 0. "random" draws each
    pixel. Default: mean."""
    mixup: float | None
    """Mix images. As torchvision's MixUp: two images of a batch and their labels are mixed by a share that is sampled
    from Beta(ALPHA, ALPHA), usually with 0.2 or 0.8; 0 is none. With --cutmix too, each pair is mixed by one of them.
    The loss and the accuracy of training are those of mixtures. Default: 0."""
    cutmix: float | None
    """Exchange parts of images. As torchvision's CutMix: two images of a batch exchange a rectangle, whose area is
    sampled from Beta(ALPHA, ALPHA), usually with 1; 0 is none. Their labels are mixed by the area. Default: 0."""
    convert_rgb: bool | None
    """Convert images that are not RGB. Grey, CMYK, palette, transparent and 16-bit ones, as torchvision's ImageFolder
    does by Pillow's convert("RGB"). With --no-convert-rgb such images cannot be read. Default: true."""
    exif_transpose: bool | None
    """Turn images by their EXIF orientation. As Pillow's ImageOps.exif_transpose does, in JPEG, PNG and WebP files.
    Images are taken as stored otherwise, as by torchvision. Default: false."""
    decode: Literal["exact", "fast"] | None
    """Size of decoded images. "exact" decodes at full size, as validation and prediction always do. "fast" decodes a
    JPEG for training at 1/2, 1/4 or 1/8 of its size where a crop is at least that much larger than --size in both
    directions, which may cost accuracy. Default: exact."""
    on_bad_sample: Literal["error", "skip", "substitute"] | None
    """Images that cannot be read. "error" ends the run. "skip" trains on the next image of the epoch instead, and
    leaves it out of validation; the run names all of them at its end and in logs/unreadable.txt. More than 1 % of the
    data set, and more than 10, are an error. "substitute" is the same for any number. Default: skip; error with
    --no-convert-rgb."""
    split: Literal["seeded", "python"] | None
    """Rule of the 80/20 split. How a folder without a validation part is split: by enmasse's own rule, or by Python's
    random.sample per class. Default: seeded."""
    split_seed: int | None
    """Seed of the 80/20 split. --seed does not change the split. Default: 0."""
    sampler: Literal["shuffle", "distributed"] | None
    """Order of training samples. "shuffle" is the same for any number of ranks. "distributed" is that of PyTorch's
    DistributedSampler. Default: shuffle."""
    shuffle: Literal["full", "block"] | None
    """Which samples are shuffled together. "full" shuffles all samples. "block" shuffles blocks of neighbouring
    samples, and then the samples of each 16 blocks, so that archives and Parquet files are read from their beginnings
    to their ends. Each sample comes once in an epoch with both. Default: block for Parquet files, full for other
    data."""
    balance: Literal["none", "classes"] | None
    """Draw each class equally often. "classes" draws as many samples of each class in an epoch, which has as many steps
    as otherwise. Small classes repeat samples, each time with another augmentation. Large classes leave samples to
    later epochs: none returns before all others of its class have been drawn. Default: none."""
    repeat_augment: int | None
    """Repetitions of each sample. Repeated augmentation, as by torchvision's --ra-sampler: each sample comes N times in
    a row, on different shards and with another augmentation each time. An epoch has as many steps as otherwise and an
    N-th of the samples; N epochs have all. Default: 1."""
    drop_last: bool | None
    """Leave out a last batch that is not full. Of each epoch of training, as PyTorch's drop_last. Otherwise the last
    batch has the samples that are left, and its loss is the mean over these, on all ranks together. Its other places
    show the first images of the epoch again, for batch norm alone. Data smaller than one batch are one such batch, and
    with this flag an error. Default: false."""

    # Model.

    model: str | float | None
    """Name of the model. enmasse models lists all of them. Default: resnet18."""
    pretrained: bool | int | str | os.PathLike[str] | None
    """Begin with known weights. The best ones for --model, or those of this name (enmasse weights list), hf:OWNER/REPO,
    perhaps with @REVISION, address or file. They are fetched once. Images are prepared as for these weights, and the
    recipe is fine-tune, unless other settings say otherwise. Default: false."""
    weights: str | os.PathLike[str] | None
    """Weights to begin with. The same for the weights and the preparation of images alone. A .pth, .ckpt or
    .safetensors file has torchvision's or timm's names. A classifier for other classes begins anew; any other
    difference of shape is an error. Default: random weights."""
    prefix: str | Sequence[str] | Mapping[str, object] | None
    """Other beginnings of the file's names. The names in a weights file may begin with the name of a module: backbone.=
    removes it, and =model. adds one. Repeatable, or separated by commas; the first that fits a name counts. A prefix
    that all names share, such as Lightning's model., needs no rule. A layer with a name that the model lacks begins
    anew: conv1.=old.conv1."""
    freeze_layers: bool | None
    """Train the classifier alone. Every other parameter stays as it is. With --freeze, what that names in the
    classifier stays too. Default: false."""
    freeze: str | Sequence[str] | Mapping[str, object] | None
    """Parameters to leave as they are. Patterns of names, such as layer1.*; repeatable, or separated by commas."""
    fine_tune: str | float | None
    """Train layers that have weights. The first epoch trains the head, which is the last layer, alone, on features that
    are computed once. "head" is no more than that. "all" goes on with all layers, "last:N" with the head and the N
    layers before it: stages or blocks, as parameters' names number them. Needs --weights or --pretrained. Default: all
    layers, from the first epoch."""
    freeze_bn: bool | None
    """Keep the statistics of batch norms. Batch norms normalise by their running statistics in training too, and keep
    them; their scale and shift are trained. Known as norm_eval. Default: false."""
    unused_parameters: Literal["error", "zero"] | None
    """Parameters without effect. A parameter that does not reach the loss is an error, or has zero gradient. Default:
    error."""

    # Training.

    recipe: str | float | None
    """Settings to begin with. The name of a recipe of enmasse, such as fine-tune, or a TOML file with keys of --config
    and perhaps extends = "NAME". Everything else that is given takes precedence. enmasse config show --recipe NAME
    prints all values. Default: none."""
    epochs: int | None
    """Passes over the data. Default: 10."""
    batch: int | None
    """Samples per shard and step. A rank has one shard, unless --shards or --accumulate gives it more. Default:
    --global-batch, divided over the shards."""
    global_batch: int | None
    """Samples of a step. Over all shards, without --batch. Default: 64."""
    lr: float | None
    """Highest learning rate. Default: 0.03."""
    schedule: Literal["cosine", "cosine-annealing", "warm-restarts", "one-cycle", "polynomial", "step", "plateau", "constant"] | None
    """Schedule of the rate. As PyTorch's, from epoch to epoch: "cosine" falls to lr x lrf, "cosine-annealing" to 0,
    "warm-restarts" too, again and again; "polynomial" falls to 0 by a power; "step" falls by gamma each step-size
    epochs, "plateau" where what --monitor names no longer improves. From step to step: "one-cycle" rises to --lr and
    falls again. The momentum stays, where PyTorch's OneCycleLR cycles it too. Default: cosine."""
    lrf: float | None
    """Where the cosine ends. As a fraction of --lr, with schedule cosine. Default: 0.01."""
    step_size: int | None
    """Epochs between steps. Of schedule step. Default: 10."""
    gamma: float | None
    """Factor of a step. Of schedules step and plateau. Default: 0.1."""
    plateau_patience: int | None
    """Epochs that a plateau lasts. Of schedule plateau: after more epochs without improvement the rate falls.
    Improvement is by more than a ten-thousandth. Epochs of warm-up do not count. Default: 10."""
    restart_epochs: int | None
    """Epochs to the first restart. Of schedule warm-restarts. Default: 10."""
    restart_mult: int | None
    """Growth of these epochs. Of schedule warm-restarts: from one restart to the next takes N times as many epochs as
    before. Default: 1."""
    power: float | None
    """Power of the polynomial. Of schedule polynomial. 1 is a line. Default: 1."""
    pct_start: float | None
    """Where the rate is highest. As a share of the run, of schedule one-cycle. It has no other warm-up. Default:
    0.3."""
    div_factor: float | None
    """Where one cycle begins. Schedule one-cycle begins at lr / FACTOR. Default: 25."""
    final_div_factor: float | None
    """Where one cycle ends. Schedule one-cycle ends at its beginning / FACTOR. Default: 10000."""
    anneal_strategy: Literal["cos", "linear"] | None
    """Curve of one cycle. As OneCycleLR's: "cos" is half a cosine up and another one down, "linear" a triangle.
    Default: cos."""
    warmup_epochs: float | None
    """Epochs of warm-up. In these epochs, or a part of one, the learning rate rises to --lr. The schedule takes the
    rest. Default: 0."""
    scale_lr: Literal["none", "linear", "sqrt"] | None
    """Scale --lr by the shards. "linear" multiplies --lr by the number of shards, "sqrt" by its square root; it is the
    number of ranks unless --shards or --accumulate is given. Default: none."""
    layer_decay: float | None
    """Lower rates towards the stem. Each layer has the rate of the next one towards the head times this, as in timm.
    Layers are those of --fine-tune last:N. Default: 1."""
    head_lr_mult: float | None
    """Factor of the head's rate. The head, the last layer, has --lr times this. Default: 1."""
    lr_mult: str | Sequence[str] | Mapping[str, object] | None
    """Factors of rates by name. The parameters that a pattern names have --lr times its factor: *.bias=2. Repeatable,
    or separated by commas; the last pattern that fits counts."""
    decay_mult: str | Sequence[str] | Mapping[str, object] | None
    """Factors of weight decay by name. Likewise of --weight-decay, which the rate multiplies: with --lr-mult *.bias=64,
    a 64th of the decay makes as much of it as elsewhere."""
    optimizer: Literal["sgd", "adamw", "lars"] | None
    """Optimiser. Default: sgd."""
    opt_arg: str | Sequence[str] | Mapping[str, object] | None
    """Hyper-parameters of the optimiser. Those that are no settings: betas=0.9,0.999 and epsilon=1e-8 of adamw,
    trust_coefficient=0.001 and epsilon=1e-8 of lars. Repeatable, or separated by commas."""
    momentum: float | None
    """Momentum of sgd and lars. Default: 0.9."""
    nesterov: bool | None
    """Nesterov's momentum in sgd. Default: false."""
    weight_decay: float | None
    """Weight decay. Default: 0.0005."""
    no_decay_norm_bias: bool | None
    """No weight decay on norms and biases. With lars, the rate is not adapted for them either. Default: false."""
    clip_norm: float | None
    """Largest norm of the gradients. Over all parameters. Longer gradients are made as long, as by PyTorch's
    clip_grad_norm_. Default: no limit."""
    label_smoothing: float | None
    """Label smoothing. Share of each target that is spread evenly over the classes. Default: 0."""
    drop_path: float | None
    """Drop path, or stochastic depth. Training leaves out the last residual branch of a sample with this probability,
    and those before it with less, in proportion to their place: in ConvNeXt, EfficientNet and vision transformers, as
    in timm. Default: the model's own."""
    ema: float | None
    """Average the weights over the steps. Keeps a moving average of weights and running statistics, of which each step
    leaves this share, such as 0.999. Evaluation uses the average, and so do exported weights. Default: no average."""
    lookahead: int | None
    """Lookahead: steps between two meetings. Every so many steps slow weights move towards the weights, which go on
    from there. Running statistics take part. Evaluation uses the slow weights, and so do exported weights. Default: no
    slow weights."""
    lookahead_alpha: float | None
    """Step of the slow weights. The share of the distance by which they move. Default: 0.5."""
    lookahead_power: float | None
    """Fall of that step. It falls over the run, from 1 to --lookahead-alpha, with this power of the share that is done.
    At 0 it stays. Default: 0."""
    recompute: bool | int | str | os.PathLike[str] | None
    """Compute blocks again in backward. Of such a block memory keeps only the result, and backward computes the rest
    once more: with the same bits, in less memory, and more slowly. With BYTES (2GiB) or a PERCENT of what the plans
    take without (60%) these are as few blocks as let the plans fit, with "auto" as few as let the step fit into what is
    free. Alone, or with "all", all of them. Default: false."""
    sync_bn: bool | None
    """Batch norm over the global batch. Its statistics are those of each shard otherwise. Default: false."""
    accumulate: int | None
    """Shards per rank and update. A rank computes them one after another before an update. Default: 1."""
    shards: int | None
    """Pieces of the global batch. Each has --batch samples. They fix the arithmetic: with the same number the weights
    are the same bits on any number of ranks. A rank hosts one or more. Default: one per rank, or --accumulate."""
    sum: Literal["auto", "tree"] | None
    """Order of sums by NCCL. Where NCCL exchanges the gradients of GPUs. "auto" is its own order, which depends on the
    number of ranks. "tree" is the fixed tree, in which --shards give the same bits on any number of ranks: each rank
    gathers the gradients of all. Default: auto."""
    reduce_precision: Literal["f32", "bf16", "f16"] | None
    """Type that is sent. "bf16" and "f16" halve what crosses between nodes. What rounding loses is kept and added in
    the next step (error feedback: docs/collectives.md). By NCCL "bf16" halves what travels between GPUs, as
    bf16_compress_hook of PyTorch's DDP does. Losses and metrics stay f32. Default: f32."""
    all_reduce: Literal["tree", "ring", "halving-doubling", "direct", "hierarchical", "auto"] | None
    """Algorithm of all-reduces. The order in which ranks add up gradients, and the way these travel. "tree" adds up
    shards in the fixed tree, in which --shards give the same bits on any number of ranks. By "ring",
    "halving-doubling", "direct" and "hierarchical" each rank first adds up its own shards, and the bits depend on the
    number of ranks, by the last one also on which of them share a node: docs/collectives.md. "auto" takes the one that
    a fixed model of costs says is the fastest for the largest bucket on these nodes. NCCL has its own. Default:
    tree."""
    loss: Literal["cross-entropy", "bce", "focal", "asymmetric", "mse", "l1", "huber"] | None
    """Loss. Of classes "cross-entropy" or "focal"; of labels "bce", "focal" or "asymmetric"; of numbers, which have a
    std of 1 here, "mse", "l1" or "huber". Default: cross-entropy of classes, bce of labels, mse of numbers."""
    focal_gamma: float | None
    """Exponent of the focal loss. What the model is sure of counts the less the larger it is. Default: 2."""
    huber_delta: float | None
    """End of the square in huber. The error up to which it is squared, and from which it is straight: PyTorch's delta,
    in std of the numbers. Default: 1."""
    class_weights: str | float | None
    """Weights of classes in the loss. "balanced": all classes count alike, however many images they have, as
    scikit-learn's class_weight; of labels each counts as much where it is there as where it is not (pos_weight). Or a
    JSON file, {"daisy": 2.5, …}. Of classes their mean over the training images becomes 1, and the cross-entropy of
    validation has none. Default: all 1."""
    teacher: str | os.PathLike[str] | None
    """Trained model to imitate. Knowledge distillation: a run's folder, whose best weights count as in "enmasse eval",
    or a checkpoint. It sees the same images, with their augmentation and mixtures, and must know the same classes,
    labels or numbers. The loss of training then has a part that is small where both models give the same; the loss of
    validation has none. Default: none."""
    distillation_alpha: float | None
    """Teacher's share of the loss. The loss of the targets has the rest. 0 is training without the teacher. Default:
    0.5."""
    distillation_temperature: float | None
    """Temperature of a distillation. Both models' logits are divided by it, so that a larger one shows more of how the
    teacher ranks the other classes, and the divergence is multiplied by its square, as by Hinton, Vinyals and Dean
    (2015), who found 2.5 to 4 the best for small models. Numbers have none. Default: 4."""
    metrics: str | Sequence[str] | Mapping[str, object] | None
    """Metrics besides loss and accuracy. Measured in training and validation: topK, such as top5, and gradient_norm."""
    monitor: str | float | None
    """What decides which epoch is the best. The value of an epoch whose best checkpoint is kept as
    checkpoints/best.safetensors, and tested at the end: val_accuracy, val_loss, balanced_accuracy, macro_f1,
    train_accuracy, train_loss, or one of --metrics, such as val_top5. Of losses the lowest is the best, of others the
    highest. Default: val_accuracy."""
    max_steps: int | None
    """Stop after this many steps. Counted from the start of the run. Default: all epochs."""
    max_time: str | float | None
    """Stop after this time. As days, hours, minutes and seconds (00:12:00:00), or as 12h or 90m. Training then ends as
    a success, between two steps and after a checkpoint. A resumed run goes on counting. Default: all epochs."""
    limit_train_batches: str | float | None
    """Batches of an epoch to train on. A number of global batches, or a share of them with a point: 1 is one batch, 1.0
    all of them. Default: all."""
    limit_val_batches: str | float | None
    """Batches to validate on. Likewise. Their images are evenly spaced over those for validation, so that all classes
    are there. Default: all."""
    val_every: int | None
    """Epochs between validations. The last epoch is validated in any case. Only an epoch that is validated can be the
    best one, and counts for --patience. Default: 1."""
    fast_dev_run: bool | int | str | os.PathLike[str] | None
    """Try whether everything works. Trains on one batch, or N, validates on as many, and ends: no folder, checkpoint or
    record is left. Default: false."""
    find_lr: bool | None
    """Search for a learning rate. Trains on up to 100 batches with a rate that grows from 1e-7 to 10, until the loss
    diverges, draws find_lr.svg here, and prints the --lr where the loss falls fastest: the range test of fastai and
    Lightning. Nothing else is kept. Default: false."""
    find_batch: bool | None
    """Search for a batch. Prints the largest --batch that fits, how fast batches of 1, 2, 4 and more train, and the
    smallest that is as fast as any. Nothing is kept. Default: false."""
    patience: int | None
    """Stop after epochs without improvement. After so many validated epochs that are no better than the best one
    training ends as a success. The best epoch's weights are kept in any case. A resumed run goes on counting. Default:
    all epochs."""
    seed: int | None
    """Seed of the run. It decides the initial weights, the order of samples, augmentation and dropout. Default: 0."""

    # Devices.

    devices: str | float | None
    """Devices of this machine, one per rank. KIND:N, such as cpu:2 or gpu:1, KIND:all, KIND:free:N for those that
    nobody uses, or KIND:LIST where they have numbers. "auto" takes the GPUs that pass a self-test and that nobody uses,
    otherwise one CPU rank for each core, at most 8; several launched ranks take one GPU each. A resumed run looks
    again. Default: auto."""
    share_devices: bool | None
    """Let several ranks compute on one GPU. Otherwise that is an error, since it is mostly a mistake: such ranks take
    turns, and share its memory. Default: false."""
    strategy: Literal["ddp", "dp", "zero1"] | None
    """Where gradients are applied. "ddp": every rank updates, after sums that overlap with backward, as PyTorch's
    DistributedDataParallel. "dp": as its DataParallel, to compare with. The ranks are threads of one process; after
    backward the first device sums all gradients, updates, and copies the parameters to the others. "zero1": each rank
    keeps the optimiser's state of a part alone, updates that part, and gets the others, with the bits of ddp; as
    DeepSpeed's ZeRO stage 1. On CPUs. Default: ddp."""
    stages: str | Sequence[str] | Mapping[str, object] | None
    """Layers that begin a stage of the model. The model is cut before these layers, in its order, and each rank
    computes one stage: layer3 makes two of a ResNet. With a multiple of as many ranks, several compute each stage. The
    weights are the bits of one rank with as many --shards."""
    schedule_stages: Literal["gpipe", "1f1b"] | None
    """Order of work in stages. "gpipe" is forward of all micro-batches, then backward of all. "1f1b" alternates, so
    that a stage holds the activations of fewer. The bits are the same. Default: gpipe."""
    micro_batches: int | None
    """Pieces of a batch in stages. A stage computes one while the next stage has another. Each has --batch samples, and
    its own statistics in batch norms. Default: 4 for each stage."""
    tensor_parallel: int | None
    """Ranks over which layers are cut. Pairs of linear layers, and the heads of attention, are divided among so many
    ranks, which compute the same images: each has a part of the weights, gradients and optimiser's state. With a
    multiple of as many ranks, each group has images of its own. The weights are those of a whole model up to rounding.
    On CPUs. Default: 1."""
    ranks: Literal["process", "thread"] | None
    """What a rank is. A process, or a thread (for tests and debuggers). Default: process."""
    threads: int | None
    """Computing threads per rank. Default: the ranks share the cores."""
    loader_threads: int | None
    """Threads per rank that decode images. Default: the ranks share the cores."""
    precision: Literal["f32", "tf32", "bf16", "f16"] | None
    """Type of activations and matmuls. Activations and their gradients take half of the memory in bf16 and f16. f16
    scales the loss. tf32 rounds only what convolutions and linear layers multiply. f16 and tf32 need a GPU. Weights and
    sums are always f32. Default: f32."""
    isa: str | float | None
    """Instruction-set level of the kernels. portable, avx2, avx512, avx512_bf16 or amx; on 64-bit ARM portable, neon or
    neon_bf16. All ranks must have the same. Default: the machine's best."""
    exact: bool | None
    """Convolutions by direct sums only. Leaves out Winograd, whose rounding is two to four times as large. Default:
    false."""
    fuse: bool | None
    """Fuse operations. Computes several as one, such as batch norm, the sum with a shortcut and ReLU in one pass over
    memory, on a CPU also with the convolution before them in evaluation, and with that after them in training.
    --no-fuse runs each as the model has it, which is slower and takes more memory, for comparisons. Default: true."""
    tune: bool | None
    """Measure the fastest convolutions first. Otherwise they follow from a convolution's shape, on a GPU by cuDNN's
    estimate. Rank 0 measures for all; --resume reuses what it chose. Default: false."""
    timeout: float | None
    """Longest wait for a rank or disk. In seconds. After that the run fails, and names the rank that the others waited
    for, or the image. Default: 600."""
    heartbeat: float | None
    """Longest silence of a rank. In seconds. A rank that hangs or is cut off ends the run after that; a run that is
    stopped as a whole goes on. Default: 5."""
    transport: Literal["auto", "mpi"] | None
    """What carries data between nodes. "auto" is TCP. "mpi" is the MPI library of the mpirun, mpiexec or srun that has
    started the ranks, and so the cluster's own network. Ranks of one node share memory with both, and the sums are the
    same bits. Default: auto."""
    check_ranks: bool | None
    """Compare parameters after every step. The run fails at the first tensor that differs between ranks. Default:
    false."""

    # Output.

    out: str | os.PathLike[str] | None
    """Run folder to make or to resume. Default: runs/TIME-MODEL."""
    resume: bool | int | str | os.PathLike[str] | None
    """Go on from a checkpoint. From the last one of the run in --out, or else of the newest run in runs/, with DATA of
    the newest of these data; where there is no run, it starts. RUN is the folder of the run to go on with. "best" goes
    on from the best epoch, and drops what came after it. Default: false."""
    save_every: int | None
    """Steps between checkpoints. 0: only at the end of each epoch. Default: 0."""
    keep: str | float | None
    """Checkpoints to keep. The last and the best always stay. N keeps those of the N newest epochs too, as
    checkpoints/epoch-E.safetensors; all keeps those of every epoch. Default: last,best."""
    export_every: int | None
    """Epochs between weights for PyTorch. Writes weights/model-E.pth after every N epochs, with the preparation of
    images as JSON beside it. These files all stay. 0: never. Default: 0."""
    mlflow: str | os.PathLike[str] | None
    """MLflow's file store to log into. The folder that MLflow calls mlruns: parameters are the settings, metrics the
    values of each epoch. mlflow ui --backend-store-uri DIR shows it; MLflow 3 wants MLFLOW_ALLOW_FILE_STORE=true in the
    environment for that. A resumed run goes on in the same place. Default: none."""
    histograms: bool | None
    """Log how weights are distributed. A histogram of each parameter after every epoch, for TensorBoard. For that all
    weights are read once an epoch, on a GPU also copied from it. Default: false."""
    log_every: int | None
    """Steps between lines about steps. They have loss, learning rate and images per second. 0: none. Default: 0."""
    trace_steps: int | None
    """Steps to draw on a timeline. As logs/trace.json of the run folder, for chrome://tracing and ui.perfetto.dev: this
    many steps of every rank after the first ten, on one clock. Default: no timeline."""
    requeue_signal: Literal["USR1", "USR2", "none"] | None
    """Signal to save and requeue. At this signal the run is saved, its Slurm job requeued, and the program ends with
    code 75. Default: USR1."""
    log_ranks: bool | None
    """Let every rank print. To standard error. Otherwise only the first rank prints. Default: false."""
