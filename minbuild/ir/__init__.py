"""The nouns: plain frozen data that the other folders turn one into the next.

artifacts --load--> TrainingArtifacts --lower--> Program --plan--> Plan --emit--> Package --build--> Binary
Binary --measure--> SizeReport

Every folder may import this one; it imports none of them except `errors`. Fields are added here, behaviour elsewhere.
"""

from minbuild.ir.artifacts import (
    GRADIENT_SUFFIX,
    RESET_INPUT,
    Checkpoint,
    Graph,
    Node,
    OptimizerGroup,
    Parameter,
    Seal,
    TrainingArtifacts,
)
from minbuild.ir.binary import Binary, Package, Section, Symbol
from minbuild.ir.fingerprint import fingerprint_of
from minbuild.ir.plan import Buffer, Kernel, Plan, PlanParameter, PlanTensor, Routine, Step
from minbuild.ir.program import Call, Procedure, Program, Role, Value
from minbuild.ir.types import ElementType, Shape, TensorType

__all__ = [
    "GRADIENT_SUFFIX",
    "RESET_INPUT",
    "Binary",
    "Buffer",
    "TrainingArtifacts",
    "Call",
    "Checkpoint",
    "ElementType",
    "Graph",
    "Kernel",
    "Node",
    "OptimizerGroup",
    "Package",
    "Parameter",
    "Plan",
    "PlanParameter",
    "PlanTensor",
    "Procedure",
    "Program",
    "Role",
    "Routine",
    "Seal",
    "Section",
    "Shape",
    "Step",
    "Symbol",
    "TensorType",
    "Value",
    "fingerprint_of",
]
