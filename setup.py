"""Everything about the package is in setup.cfg; this adds the one thing it cannot say.

``aifabric_ctrl.pth`` has to lie beside the package, at the top of site-packages, in normal and in editable installs
alike; a wheel's ``.data/purelib`` directory is unpacked there.
"""

from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.install import install  # noqa: F401  (brings setuptools' distutils into place)

from distutils.command.install_data import install_data  # isort: skip


class PthBesidePackage(install_data):
    """Puts data files into purelib instead of below sys.prefix."""

    def run(self):
        wheel_data = Path(self.install_dir)  # NAME.data/data, while a wheel is built
        if wheel_data.name == "data" and wheel_data.parent.suffix == ".data":
            self.install_dir = str(wheel_data.with_name("purelib"))
        else:
            self.install_dir = self.get_finalized_command("install").install_lib
        super().run()


class WithData(Distribution):
    """setuptools' editable install asks for ``has_data`` where every other command asks for ``has_data_files``."""

    has_data = Distribution.has_data_files


setup(distclass=WithData, cmdclass={"install_data": PthBesidePackage}, data_files=[("", ["aifabric_ctrl/aifabric_ctrl.pth"])])
