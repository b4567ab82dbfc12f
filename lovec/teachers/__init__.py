"""Teachers: estimates of how true training answers are, for a policy to state, with or without labels."""

from lovec.teachers.base import Estimates, StoredTeacher, Teacher, TeacherResources
from lovec.teachers.blend import Blend, CalibratedStack
from lovec.teachers.single import BaselineTeacher, OracleTeacher, PolicyMean

__all__ = [
    "BaselineTeacher",
    "Blend",
    "CalibratedStack",
    "Estimates",
    "OracleTeacher",
    "PolicyMean",
    "StoredTeacher",
    "Teacher",
    "TeacherResources",
]
