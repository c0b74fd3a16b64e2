"""The contracts: what a plugin author imports. A leaf: no torch, no input or output."""

from reroll.api.component import API_VERSION, Component, Config, NoConfig
from reroll.api.context import Protocol, RunContext, Seeds
from reroll.api.datasets import Dataset, DatasetConfig, DatasetRow, given_messages, text_field
from reroll.api.derivations import Anchor, Derivation
from reroll.api.engines import (
    CommitCost,
    Completion,
    Engine,
    EngineContext,
    FinishReason,
    GenerationRequest,
    SamplingParams,
    TensorSpec,
    WeightBucket,
    WeightGroup,
    WeightStream,
)
from reroll.api.errors import (
    WORKER_LOST,
    CheckpointError,
    EngineError,
    EngineUnavailable,
    PluginError,
    Problem,
    RequestRefused,
    RerollError,
    RunFileError,
    ScorerClosed,
    TaskError,
    TrainingError,
    WorkerDied,
)
from reroll.api.filters import GroupFilter, PromptFilter
from reroll.api.harnesses import AssistantTurn, Harness, HarnessContext
from reroll.api.hooks import hookimpl, hookspec
from reroll.api.launching import JobState, Launcher, LaunchJob
from reroll.api.placement import Placement, Worker, WorkerSpec
from reroll.api.planning import PlannedEngine, PlannedModel
from reroll.api.publication import (
    Admission,
    PublicationContext,
    PublicationMode,
    PublicationReport,
    Router,
    Transport,
    WeightSource,
)
from reroll.api.recipe import Advantage, Correction
from reroll.api.records import Decision, Disposition, RecordWriter
from reroll.api.sections import ConfigSection, RunFile
from reroll.api.selection import Hook, Selection, Since
from reroll.api.services import (
    JudgeError,
    ServiceConfig,
    ServiceError,
    ServiceUnavailable,
    ServiceVerifier,
    http_failure,
)
from reroll.api.tasks import Binding, Judge, Message, RenderedPrompt, Task, TaskSet, Tool, task_from_record
from reroll.api.thinking import without_thinking
from reroll.api.tools import function_tool
from reroll.api.traces import Group, Node, Sample, Trace, VersionSpan
from reroll.api.trackers import Tracker
from reroll.api.verifiers import SCORED_STATES, Verdict, VerdictState, Verifier
from reroll.api.wording import counted, one_line

__all__ = [
    "API_VERSION",
    "SCORED_STATES",
    "WORKER_LOST",
    "Admission",
    "Advantage",
    "Anchor",
    "AssistantTurn",
    "Binding",
    "CheckpointError",
    "CommitCost",
    "Completion",
    "Component",
    "Config",
    "ConfigSection",
    "Correction",
    "Dataset",
    "DatasetConfig",
    "DatasetRow",
    "Decision",
    "Derivation",
    "Disposition",
    "Engine",
    "EngineContext",
    "EngineError",
    "EngineUnavailable",
    "FinishReason",
    "GenerationRequest",
    "Group",
    "GroupFilter",
    "Harness",
    "HarnessContext",
    "Hook",
    "JobState",
    "Judge",
    "JudgeError",
    "LaunchJob",
    "Launcher",
    "Message",
    "NoConfig",
    "Node",
    "Placement",
    "PlannedEngine",
    "PlannedModel",
    "PluginError",
    "Problem",
    "PromptFilter",
    "Protocol",
    "PublicationContext",
    "PublicationMode",
    "PublicationReport",
    "RecordWriter",
    "RenderedPrompt",
    "RequestRefused",
    "RerollError",
    "Router",
    "RunContext",
    "RunFile",
    "RunFileError",
    "Sample",
    "SamplingParams",
    "ScorerClosed",
    "Seeds",
    "Selection",
    "ServiceConfig",
    "ServiceError",
    "ServiceUnavailable",
    "ServiceVerifier",
    "Since",
    "Task",
    "TaskError",
    "TaskSet",
    "TensorSpec",
    "Tool",
    "Trace",
    "Tracker",
    "TrainingError",
    "Transport",
    "Verdict",
    "VerdictState",
    "Verifier",
    "VersionSpan",
    "WeightBucket",
    "WeightGroup",
    "WeightSource",
    "WeightStream",
    "Worker",
    "WorkerDied",
    "WorkerSpec",
    "counted",
    "function_tool",
    "given_messages",
    "hookimpl",
    "hookspec",
    "http_failure",
    "one_line",
    "task_from_record",
    "text_field",
    "without_thinking",
]
