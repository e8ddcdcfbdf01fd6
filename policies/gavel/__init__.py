"""Gavel (OSDI20): policies as optimisation over the time that each job spends on each GPU type."""

from ones.policies.gavel.policies import POLICIES, Allocation, GavelPolicy
from ones.policies.gavel.problem import BadProblem, Entity, Problem, with_placements
from ones.policies.gavel.program import Pairs, Unsolved

__all__ = [
    "POLICIES",
    "Allocation",
    "BadProblem",
    "Entity",
    "GavelPolicy",
    "Pairs",
    "Problem",
    "Unsolved",
    "with_placements",
]
