"""What needs several rooms: robustness, attacks, outliers; and the main job, of ``audits``."""

from vicinal.audits import About as About
from vicinal.audits import Audit as Audit
from vicinal.audits import AuditSettings as AuditSettings
from vicinal.audits import HeadComparison as HeadComparison
from vicinal.audits import HeadScore as HeadScore
from vicinal.audits import Media as Media
from vicinal.audits import audit as audit
from vicinal.audits import compare_audits as compare_audits
from vicinal.audits import compare_heads as compare_heads
from vicinal.audits.attacks import AttackAudit as AttackAudit
from vicinal.audits.attacks import attack_audit as attack_audit
from vicinal.studies.outliers import OutlierStudy as OutlierStudy
from vicinal.studies.outliers import outlier_study as outlier_study
from vicinal.studies.perturbation_record import PerturbationReport as PerturbationReport
from vicinal.studies.robustness import robustness_report as robustness_report
