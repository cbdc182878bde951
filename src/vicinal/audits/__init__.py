"""The main job: how far may each prediction be trusted, which labels look wrong, who says so."""

from vicinal.audits.audit import audit as audit
from vicinal.audits.head_table import HeadComparison as HeadComparison
from vicinal.audits.head_table import HeadScore as HeadScore
from vicinal.audits.head_table import compare_heads as compare_heads
from vicinal.audits.paired import compare_audits as compare_audits
from vicinal.audits.record import Audit as Audit
from vicinal.audits.record import Media as Media
from vicinal.audits.settings import About as About
from vicinal.audits.settings import AuditSettings as AuditSettings
