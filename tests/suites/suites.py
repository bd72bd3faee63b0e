"""The suites that are run: which version, what it needs, and which of its tests construct
optimizers.

All versions are pinned. The tests come from source distributions, because wheels seldom have any.
"""

from __future__ import annotations

from dataclasses import dataclass, field

#: Why a test may end otherwise with a live peer.
STATES = (
    "it compares whole states with `==`; with peers they hold anchors, which are tensors, and the "
    "names of incarnations"
)
SPARSE = "with peers, sparse parameters are refused"
VIEW = "with peers, parameters that share memory are refused"
FILLED = "with peers, parameters are added with `add_param_group`, also to an empty group"
DTENSOR = "with peers, DTensors are refused"
EMPTY = "with peers, an optimizer has at least one parameter when it steps first"
PERTURBED = (
    "it perturbs its weights between `load_state_dict()` and the next step, so that they are not "
    "those of the checkpoint; with peers, the anchor's are taken"
)
SHARED = "several of its optimizers have the same parameter; with peers, one learner may train it"
FORKED = "it constructs a learner in a forked child of a process that has had one"


@dataclass(frozen=True, kw_only=True)
class SuiteSource:
    """A suite.

    `release` is a pinned source distribution; None if its `tests` lie here. `needs` are pinned
    packages that its tests import besides their own. `tests` are paths in the distribution, and
    `options` go to pytest. `by_design` maps a part of a test's name to the reason why it may
    end otherwise with a live peer: each such difference is a decision. Alone, there are none."""

    name: str
    release: str | None
    tests: tuple[str, ...]
    needs: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    by_design: dict[str, str] = field(default_factory=dict)

    @property
    def version(self) -> str:
        return self.release or "torch's own"


SUITES = (
    SuiteSource(
        name="torch",
        release=None,
        tests=("torch_catalogue.py",),
        needs=("expecttest==0.3.0",),
        by_design={
            "::test_a_sparse_leaf_is_accepted": SPARSE,
            "::test_a_view_of_a_parameter_may_be_a_parameter": VIEW,
            "::test_an_empty_group_can_be_filled_later": FILLED,
        },
    ),
    SuiteSource(
        name="skorch",
        release="skorch==1.4.0",
        tests=(
            "skorch/tests/test_net.py",
            "skorch/tests/test_classifier.py",
            "skorch/tests/test_regressor.py",
            "skorch/tests/test_helper.py",
            "skorch/tests/callbacks",
        ),
        needs=("flaky==3.8.1", "pandas==2.3.3", "matplotlib==3.10.9", "safetensors==0.8.0"),
        # They compile for minutes.
        options=(
            "-k",
            "not TestTorchCompile",
        ),
    ),
    SuiteSource(
        name="ignite",
        release="pytorch-ignite==0.5.5",
        tests=(
            "tests/ignite/handlers/test_param_scheduler.py",
            "tests/ignite/handlers/test_state_param_scheduler.py",
            "tests/ignite/handlers/test_lr_finder.py",
            "tests/ignite/handlers/test_checkpoint.py",
            "tests/ignite/handlers/test_base_logger.py",
            "tests/ignite/engine/test_create_supervised.py",
            "tests/ignite/contrib/engines",
            "tests/ignite/distributed/test_auto.py",
        ),
        needs=("matplotlib==3.10.9", "tqdm==4.70.1", "dill==0.4.1"),
        # The others start processes with MPI or a second machine.
        options=(
            "-k",
            "not distrib and not hvd and not multinode and not tpu",
        ),
        by_design={
            "test_checkpoint.py::test_save_model_optimizer_lr_scheduler_with": STATES,
            "test_param_scheduler.py::test_lr_scheduler[StepLR-kwargs2": SHARED,
        },
    ),
    SuiteSource(
        name="accelerate",
        release="accelerate==1.15.0",
        tests=(
            "tests/test_optimizer.py",
            "tests/test_scheduler.py",
            "tests/test_accelerator.py",
            "tests/test_state_checkpointing.py",
            "tests/test_grad_sync.py",
            "tests/test_cpu.py",
        ),
        needs=("parameterized==0.9.0", "tqdm==4.70.1"),
        by_design={
            "::test_can_resume_training": STATES,
            "test_scheduler.py::": FORKED,
            "test_grad_sync.py::": FORKED,
            "test_cpu.py::MultiCPUTester::test_cpu": FORKED,
        },
    ),
    SuiteSource(
        name="pytorch_optimizer",
        release="pytorch_optimizer==4.1.0",
        tests=(
            "tests/test_wrapper_optimizers.py",
            "tests/test_lr_schedulers.py",
            "tests/test_general_optimizer_parameters.py",
            "tests/test_create_optimizer.py",
            "tests/test_gradients.py",
            "tests/test_optimizer_variants.py",
            "tests/optimizers",
        ),
        # They compile for minutes.
        options=(
            "-k",
            "not compile",
        ),
        by_design={
            "::test_sharded_updates": DTENSOR,
            "TestTRAC::test_empty_parameters": EMPTY,
            "::test_checkpoint_resume[WSAM]": PERTURBED,
        },
    ),
    SuiteSource(
        name="schedulefree",
        release="schedulefree==1.4.1",
        tests=("schedulefree/test_schedulefree.py",),
        # It is written for a GPU, and runs as well without.
        options=("--mend-no-cuda",),
    ),
    SuiteSource(
        name="torch-optimizer",
        release="torch-optimizer==0.3.0",
        tests=(
            "tests/test_basic.py",
            "tests/test_param_validation.py",
            "tests/test_optimizer_with_nn.py",
        ),
    ),
    SuiteSource(
        name="pytorch-warmup",
        release="pytorch-warmup==0.2.0",
        tests=("test",),
    ),
    SuiteSource(
        name="stable-baselines3",
        release="stable-baselines3==2.9.2",
        tests=(
            "tests/test_save_load.py",
            "tests/test_custom_policy.py",
            "tests/test_train_eval_mode.py",
            "tests/test_deterministic.py",
        ),
        needs=("pandas==2.3.3", "matplotlib==3.10.9", "tqdm==4.70.1", "rich==15.0.0"),
        # It writes 2 GB, in about as long as a test may take.
        options=("-k", "not large_model"),
    ),
    SuiteSource(
        name="timm",
        release="timm==1.0.31",
        tests=(
            "tests/test_optim.py",
            "tests/test_scheduler.py",
            "tests/test_checkpoint_saver.py",
            "tests/test_checkpoint_loading.py",
            "tests/test_task.py",
            "tests/test_train_resume.py",
        ),
        needs=("expecttest==0.3.0",),
        # They compile for minutes.
        options=("--mend-no-vision", "-k", "not compile"),
        by_design={"test_optim.py::": STATES},
    ),
    SuiteSource(
        name="poutyne",
        release="poutyne==1.19.0",
        tests=("tests/framework",),
        needs=("pandas==2.3.3", "scikit-learn==1.7.2", "matplotlib==3.10.9"),
        by_design={"OptimizerCheckpointTest::test_checkpoints": STATES},
    ),
    SuiteSource(
        name="gpytorch",
        release="gpytorch==1.15.2",
        # All of its examples take hours.
        tests=(
            "test/examples/test_simple_gp_regression.py",
            "test/examples/test_simple_gp_classification.py",
            "test/examples/test_svgp_gp_regression.py",
            "test/examples/test_white_noise_regression.py",
            "test/variational",
            "test/kernels/test_newton_girard_additive_kernel.py",
        ),
    ),
)
