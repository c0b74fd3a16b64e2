"""The contracts: what a plugin author imports. A leaf: no torch, no input or output."""

from reroll.api.component import API_VERSION, Component, Config, NoConfig
from reroll.api.context import Protocol, RunContext, Seeds
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
from reroll.api.placement import Launcher, Placement, Worker, WorkerSpec
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
from reroll.api.selection import Hook, Selection
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
    "Judge",
    "JudgeError",
    "Launcher",
    "Message",
    "NoConfig",
    "Node",
    "Placement",
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
    "hookimpl",
    "hookspec",
    "http_failure",
    "one_line",
    "task_from_record",
    "without_thinking",
]
